"""Declarations of stateful operators and joins: checked arguments become an operator and its store's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster._errors import RosterError
from roster.assignors import as_tuple
from roster.client import DEFAULT_ASSIGNORS
from roster.model.topics import NAME_RULE, is_legal_name
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options, as_columns
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.json_values import JsonReader, unsupported
from roster.pipeline.tasks.value_columns import PERMISSIVE
from roster.spark.aggregate_columns import Aggregates, Named, aggregates_over, named_aggregates
from roster.spark.steps import Parsed, Step, chained, pickled
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import ALL_ROWS, Aggregate, Kind
from roster.state.deduplicate import Deduplication
from roster.state.definition import Migrate
from roster.state.durations import Duration, as_timedelta
from roster.state.join_entries import SIDES
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState, StateError
from roster.state.stream_join import WAITING_SIDES, StreamJoin
from roster.state.windows import END, START, SessionWindow, Window, WindowedAggregation
from roster.stateful.tasks.operator_steps import with_function
from roster.stateful.tasks.processing import Operator
from roster.stateful.tasks.subtopology import LateRows, OtherSide
from roster.stateful.tasks.table_join import FIELD as TABLE
from roster.stateful.tasks.table_join import Lookup

INNER, LEFT = "inner", "left"
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - compared with


@dataclass(frozen=True)
class OtherStream:
    """The other topic, and the fields of its values."""

    topic: str
    schema: str | StructType

    def resolved(self, join: StreamJoin, own: StructType, records: StructType) -> tuple[StreamJoin, OtherSide]:
        """Return the operator for rows with these columns, and how to read the other topic. Raises PipelineError."""
        struct = as_struct(self.schema, "join")
        if missing := [name for name in join.keys if name not in own.names or name not in struct.names]:
            raise PipelineError(
                f"no column {missing[0]!r} on both sides",
                field="keys",
                fix=f"Rows have {own.names}, it has {struct.names}",
            )
        if other := [name for name in join.keys if own[name].dataType != struct[name].dataType]:
            name = other[0]
            kinds = f"{own[name].dataType.simpleString()} and {struct[name].dataType.simpleString()}"
            raise PipelineError(f"column {name!r} is {kinds}", field="keys", fix="Give both sides one type")
        right = () if join.how == "semi" else tuple(name for name in struct.names if name not in join.keys)
        if twice := [name for name in right if name in own.names]:
            raise PipelineError(
                f"rows have a column {twice[0]!r} already", field="join", fix="Leave it out of one of the schemas"
            )
        time = join.times[1]
        step = Parsed(struct, "value", PERMISSIVE, () if time in struct.names else (time,))
        function, columns = chained([step], records)
        assert function is not None  # there is a step
        side = OtherSide(self.topic, function, arrow_schema(own), arrow_schema(columns))
        return replace(join, right=right), side


@dataclass(frozen=True)
class TableJoin:
    """What `Pipeline.join_table` declares."""

    topic: str
    on: str
    schema: str | StructType
    how: str

    def __post_init__(self) -> None:
        if self.how not in (INNER, LEFT):
            raise PipelineError(f"{self.how!r} is not possible", field="how", fix="Use 'inner' or 'left'")

    def resolved(self, given: StructType) -> tuple[Lookup, StructType]:
        """Return the join for rows with these columns, and its result columns. Raises PipelineError."""
        struct = as_struct(self.schema, TABLE)
        fields = arrow_schema(struct)
        if self.on not in given.names:
            raise PipelineError(
                f"no column {self.on!r}", field="on", fix=f"Name the one with the table's keys, of {given.names}"
            )
        if twice := [name for name in struct.names if name in given.names]:
            raise PipelineError(
                f"rows have a column {twice[0]!r} already", field=TABLE, fix="Leave it out of one of the schemas"
            )
        if (wrong := unsupported(fields)) is not None:
            raise PipelineError(f"field {wrong!r} has a type that is not parsed", field=TABLE, fix="Leave it out")
        columns = StructType([*given.fields, *struct.fields])
        return Lookup(self.on, JsonReader(fields), arrow_schema(columns), self.how == LEFT), columns


@dataclass(frozen=True)
class Stateful:
    """A stateful operator of a pipeline, and its store's name."""

    operator: Operator
    store: str
    other: OtherStream | None = None
    """The other stream, if the operator is a stream join."""
    late: LateRows | None = None
    has_updates: bool = False
    """True if it sends updates: a new result replaces an earlier one of the same keys."""
    takes_updates: bool = False
    """True if its input may be updates."""
    retracts: bool = False
    """True if an update may retract a result of other keys."""
    is_by_key: bool = False
    """True if a batch's results are not in the order of its input rows."""
    migrate: Migrate = None
    """How results come from the results of the state's earlier definition."""
    sides: tuple[Sequence[str | int], ...] = ()
    """The source names of each side of a join that gets the rows of both together, or numbers of sub-topologies."""
    named: Mapping[str, Named] = field(default_factory=dict)
    """The aggregates that take the places of the operator's once the columns of its rows are known."""


@dataclass(frozen=True)
class Repartition:
    """Arguments of `Pipeline.repartition`."""

    keys: tuple[str, ...]
    name: str
    partitions: int | None

    @classmethod
    def by(cls, keys: str | Sequence[str], name: str | None, partitions: int | None) -> Repartition:
        """Check the arguments. Raises PipelineError."""
        columns = as_columns(keys, "repartition")
        if not columns:
            raise PipelineError("no key", field="repartition", fix="Name at least one column")
        is_count = isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0
        if partitions is not None and not is_count:
            raise PipelineError(f"{partitions!r} is not possible", field="partitions", fix="Use a number from 1 on")
        name = name if name is not None else f"by-{'-'.join(columns)}"
        if not is_legal_name(name):
            raise PipelineError(f"{name!r} cannot be part of a topic name", field="name", fix=f"Use {NAME_RULE}")
        return cls(columns, name, partitions)


def late_rows(topic: str | None, keys: str | Sequence[str]) -> LateRows | None:
    """Return the destination of late rows, None without a topic. Raises PipelineError for an illegal topic name."""
    if topic is None:
        return None
    if not is_legal_name(topic):
        raise PipelineError(f"{topic!r} is not a topic name", field="late_topic", fix=f"Use {NAME_RULE}")
    return LateRows(topic, as_columns(keys))


def aggregation(
    keys: str | Sequence[str],
    aggregates: Aggregates,
    window: Window | SessionWindow | None,
    results: str,
    store: str,
    migrate: Migrate,
) -> Stateful:
    """Return the operator of `Pipeline.aggregate`. Raises PipelineError for wrong arguments."""
    if results not in ("updates", "final") or (results == "final" and window is None):
        raise PipelineError(
            f"{results!r} is not possible", field="results", fix="Use 'updates', or with a window 'final'"
        )
    check_extra("aggregate")
    named, columns = named_aggregates(aggregates), as_columns(keys)
    if not isinstance(window, Window | SessionWindow | None):
        raise PipelineError(f"{window!r} is none", field="window", fix="For example Window('ordered', '1 hour')")
    check_migrate(migrate, named)
    unknown = dict.fromkeys(named, Aggregate(Kind.COUNT, ALL_ROWS))
    try:
        operator: Operator = Aggregation(columns, unknown)
        if isinstance(window, SessionWindow):
            operator = SessionAggregation(columns, unknown, window, results == "final")
        elif window is not None:
            operator = WindowedAggregation(columns, unknown, window, results == "final")
    except RosterError as error:
        raise PipelineError(str(error), field="aggregate") from None
    has_updates = results == "updates"
    retracts = has_updates and isinstance(operator, SessionAggregation)
    return Stateful(
        operator,
        store,
        has_updates=has_updates,
        retracts=retracts,
        is_by_key=has_updates,
        migrate=migrate,
        named=named,
    )


def check_migrate(migrate: object, aggregates: Mapping[str, object]) -> None:
    """Raise PipelineError unless it is a function that tasks can have, or names results of the operator."""
    if callable(migrate):
        _check_named(migrate)
        pickled(migrate, "migrate")
        return
    example = "{'revenue': 'total', 'average': None}: each result, and the earlier one that it comes from"
    _check_said(migrate, list(aggregates), lambda each: isinstance(each, str), example)


def _check_named(function: object) -> None:
    """Raise PipelineError for a lambda: the definition knows a function by its name."""
    if getattr(function, "__name__", "") == "<lambda>":
        fix = "Define it with def: the state's definition has its name"
        raise PipelineError("a lambda has no name of its own", field="migrate", fix=fix)


def check_functions(migrate: object, parts: Sequence[str]) -> None:
    """Raise PipelineError unless it has functions that tasks can have, each for a part."""
    example = f"{{{(*parts, 'total')[0]!r}: function}}: it makes this release's rows of the earlier ones"
    _check_said(migrate, parts, callable, example)
    for function in (migrate or {}).values() if isinstance(migrate, Mapping) else ():
        _check_named(function)
    pickled(migrate, "migrate")


def _check_said(migrate: object, names: Sequence[str], fits: Callable[[object], bool], example: str) -> None:
    problem = ""
    if not isinstance(migrate, Mapping | None):
        problem = f"{migrate!r} is not a dict"
    elif wrong := [name for name, each in (migrate or {}).items() if not (each is None or fits(each))]:
        problem = f"{wrong[0]!r}: {(migrate or {})[wrong[0]]!r} is not possible"
    elif unknown := [name for name in migrate or () if name not in names]:
        problem = f"{unknown[0]!r} is none of {', '.join(names)}"
    if problem:
        raise PipelineError(problem, field="migrate", fix=f"For example {example}")


def deduplication(keys: str | Sequence[str], within: Duration, column: str, store: str) -> Stateful:
    """Return the operator of `Pipeline.deduplicate`. Raises PipelineError for wrong arguments."""
    check_extra("deduplicate")
    columns = as_columns(keys)
    try:
        return Stateful(Deduplication(columns, column, as_timedelta("within", within)), store)
    except RosterError as error:
        raise PipelineError(str(error), field="deduplicate") from None


def stream_join(
    other: OtherStream,
    keys: str | Sequence[str],
    times: tuple[str, str],
    within: Duration,
    grace: Duration | None,
    how: str,
    store: str,
    migrate: Migrate,
) -> Stateful:
    """Return the operator of `Pipeline.join`, without the other side's columns. Raises PipelineError."""
    check_extra("join")
    check_functions(migrate, SIDES)
    if how not in WAITING_SIDES:
        raise PipelineError(f"{how!r} is not possible", field="how", fix="Use 'inner', 'left', 'full' or 'semi'")
    columns = as_columns(keys)
    try:
        apart = as_timedelta("within", within)
        slack = apart if grace is None else as_timedelta("grace", grace)
        operator = StreamJoin(columns, times, (), apart, slack, how)
        return Stateful(operator, store, other, is_by_key=True, migrate=migrate)
    except RosterError as error:
        raise PipelineError(str(error), field="join") from None


def with_steps(operator: Operator, columns: pa.Schema, steps: Sequence[Step], *, store: str = "") -> Operator:
    """Return the operator with the steps applied to its results; `columns`: of its input rows.

    store: names the operator in errors. Raises PipelineError for steps that do not fit.
    """
    if not steps:
        return operator
    own = operator(columns.empty_table(), NoState()).results.schema
    results = from_arrow_schema(own)
    function, struct = chained(steps, results)
    if function is None:
        return operator
    # Spark's timestamps have microseconds: with them the text of a window, and so the records' key, would be another.
    kept = [own.field(f.name) if f.name in {START, END} & {*own.names} else f for f in arrow_schema(struct)]
    return with_function(operator, arrow_schema(results), function, pa.schema(kept), store)


def check_extra(field: str) -> None:
    """Raise PipelineError unless the packages of a store are installed."""
    try:
        import roster.state.lmdb_store  # noqa: F401, PLC0415 - only pipelines with a store need its extra
    except RosterError as error:
        raise PipelineError(str(error), field=field) from None


def with_types(stateful: Stateful, columns: StructType) -> Operator:
    """Return the operator for rows with these columns. Raises PipelineError for aggregates that do not fit."""
    operator = stateful.operator
    if not isinstance(operator, Aggregation | WindowedAggregation | SessionAggregation) or not stateful.named:
        return operator
    return replace(operator, aggregates=aggregates_over(stateful.named, columns))


def check_operator(operator: Operator, columns: pa.Schema) -> None:
    """Raise PipelineError if the operator cannot work with rows of these columns."""
    try:
        operator(columns.empty_table(), NoState())
    except StateError as error:
        part, _, problem = str(error).partition(": ")
        raise PipelineError(problem or part, field=part if problem else "aggregate") from None


def check_options(options: Options, *, has_transform: bool) -> None:
    """Raise PipelineError for options that a stateful pipeline cannot have."""
    if not isinstance(options.topics, tuple):
        raise PipelineError(
            "topics that come later have no state", field="topics", fix="Name the topics of a pipeline with state"
        )
    check_assignors(options)
    if has_transform:
        raise PipelineError(
            "a transform's rows leave the task that has their state",
            field="transform",
            fix="Use map_arrow before, or another pipeline behind",
        )
    address = options.http_address
    if address is not None and address.host in _ALL_INTERFACES and not options.access.is_limited:
        raise PipelineError(
            f"{address} lets anyone who reaches this machine read the state",
            field="http",
            fix="Name one host of this machine, or set a token or ssl.client.auth in http_security",
        )


def check_assignors(options: Options) -> None:
    """Raise PipelineError if assignors are named for tasks that have stores."""
    if options.assignors != as_tuple(DEFAULT_ASSIGNORS):
        raise PipelineError(
            "a pipeline with state or tables places its tasks by their stores",
            field="assignors",
            fix="Leave it out: State(standbys=...) says how many copies there are",
        )
