"""Options of Spark's Kafka source and of a query as options of a `Pipeline`."""

from __future__ import annotations

import ast
import contextlib
import difflib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from roster.model.options import declared
from roster.model.topics import NAME_RULE
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Tuning, checked
from roster.pipeline.pipeline_options import PipelineOptions
from roster.pipeline.state_options import State

log = logging.getLogger("roster.pipeline")
T = TypeVar("T")

_SECURE = ("security.", "sasl.", "ssl.")
_KAFKA, _OWN, _OF_STATE = "kafka.", "roster.", "roster.state."
KEYED_BY = "roster.keyed_by"
"""Option of a source: the columns that the records' key is made of, so that their rows need not move."""
MIGRATE = "roster.migrate"
"""Option of a query: as JSON what results of a state were before, as in `{"hours": {"revenue": "total"}}`."""
_SET_BY_CODE = ("spark", "bootstrap", "group", "topics", "state", "consumer", "security", "on_progress")
_WITHOUT_EFFECT = {
    "groupidprefix": "the group is kafka.group.id, or the query's name",
    "minoffsetspertrigger": "a trigger spaces batches out",
    "maxtriggerdelay": "a trigger spaces batches out",
    "kafkaconsumer.polltimeoutms": "Roster has a reader of its own",
    "fetchoffset.numretries": "Roster tries until its time limits",
    "fetchoffset.retryintervalms": "Roster tries until its time limits",
    "kafka.key.deserializer": "keys are bytes",
    "kafka.value.deserializer": "values are bytes",
    "startingoffsetsbytimestampstrategy": "a time behind all records is the end",
    "maxrecordsperpartition": "Roster cuts batches into tasks by itself",
    **dict.fromkeys(("kafka.enable.auto.commit", "kafka.auto.commit.interval.ms"), "batches commit their offsets"),
    **dict.fromkeys(
        (
            *("kafka.max.poll.records", "kafka.fetch.min.bytes", "kafka.receive.buffer.bytes", "kafka.check.crcs"),
            *("kafka.send.buffer.bytes", "kafka.connections.max.idle.ms", "kafka.default.api.timeout.ms"),
            *("kafka.retry.backoff.ms", "kafka.reconnect.backoff.ms", "kafka.reconnect.backoff.max.ms"),
        ),
        "Roster has a reader of its own",
    ),
}
"""Options that change no result; they are left out, which is said."""
_REFUSED = {
    "assign": ("partitions come from the group", "subscribe"),
    "startingoffsetsbytimestamp": ("a time for each partition is not known", "startingTimestamp"),
    "kafka.auto.offset.reset": ("Spark has it elsewhere, too", "startingOffsets"),
    **dict.fromkeys(
        ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
        ("a stream has no end", "trigger(availableNow=True)"),
    ),
}


@dataclass(frozen=True)
class Source:
    """What a reader's options say.

    Attributes:
        bootstrap: the brokers' addresses.
        topics: names, or "pattern:" and a regular expression.
        group: "" if the options name none.
        keywords: further arguments of `Pipeline`.
        keyed_by: columns that the records' key is made of; () if the options do not say.

    """

    bootstrap: str
    topics: str | list[str]
    group: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keyed_by: tuple[str, ...] = ()

    @property
    def has_headers(self) -> bool:
        """True if the column `headers` is read."""
        return bool(self.keywords.get("include_headers", False))


class WithOptions:
    """Options that methods set one by one; names count in any case, as in Spark, and stay as they were written."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}

    def option(self, key: str, value: object) -> Self:
        """Set an option of Spark's, or `roster.` and the name of one of `Pipeline`; None takes it away."""
        self._options = {name: old for name, old in self._options.items() if name.lower() != key.lower()}
        if value is not None:
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> Self:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self


def raise_all(problems: Sequence[PipelineError]) -> None:
    """Raise one error with all problems, if there are any."""
    if len(problems) == 1:
        raise problems[0]
    if fields := {problem.field for problem in problems}:
        texts = [
            (f"{problem.field}: " if len(fields) > 1 and problem.field else "")
            + problem.problem
            + (f" ({problem.fix})" if problem.fix else "")
            for problem in problems
        ]
        raise PipelineError("; ".join(texts), field=fields.pop() if len(fields) == 1 else None)


@contextlib.contextmanager
def noting(problems: list[PipelineError]) -> Iterator[None]:
    """Add an error to the problems, in words of options."""
    try:
        yield
    except PipelineError as error:
        problems.append(in_words_of_options(error))


def made_of(options: Mapping[str, str], make: Callable[[Mapping[str, str]], T]) -> T:
    """Return what a function makes of options.

    Raises one PipelineError for all that are wrong: without each of them the others are tried again.
    """
    problems = list[PipelineError]()
    while True:
        with noting(problems):
            made = make(options)
            break
        wrong = problems[-1].field or ""
        rest = {name: value for name, value in options.items() if name.lower() != wrong.lower()}
        rest |= {name: example for _, name, example in _NEEDED if name == wrong}
        if rest == options:
            break
        options = rest
    raise_all(problems)
    return made


def source_of(options: Mapping[str, str]) -> Source:
    """Read the options of Spark's Kafka source; names are in any case.

    Raises one PipelineError that names each wrong option in the case that was given.
    """
    source = made_of(options, _source_of)
    for name in options:
        if (why := _WITHOUT_EFFECT.get(name.lower())) is not None:
            log.warning("%s has no effect: %s", name, why)
    return source


def _source_of(options: Mapping[str, str]) -> Source:
    """Read options. Raises PipelineError for the first one that is wrong."""
    keywords: dict[str, Any] = {"starting_offsets": "latest"}
    kafka: dict[str, str] = {}
    # A time counts for more than offsets, as in Spark.
    for name in sorted(options, key=lambda name: name.lower() == "startingtimestamp"):
        plain, value = name.lower(), options[name]
        if plain in _REFUSED:
            why, instead = _REFUSED[plain]
            raise PipelineError(why, field=name, fix=f"Use {instead}")
        if plain in _BY_NAME:
            keyword, read = _BY_NAME[plain]
            if keyword == "topics" and keyword in keywords:
                raise PipelineError("subscribe and subscribePattern are both given", field=name, fix="Use one of them")
            keywords[keyword] = read(name, value)
        elif plain.startswith(_KAFKA) and plain not in _WITHOUT_EFFECT:
            kafka[plain.removeprefix(_KAFKA)] = value
        elif not is_own(name) and plain not in _WITHOUT_EFFECT:
            problem, near = "Spark's Kafka source has no option of this name", _near(plain)
            raise PipelineError(problem, field=name, fix=f"Did you mean {near}?" if near else None)
    for keyword, name, example in _NEEDED:
        if not keywords.get(keyword):
            raise PipelineError("it is not given", field=name, fix=f'For example .option("{name}", "{example}")')
    names = next((text for name, text in options.items() if name.lower() == KEYED_BY), "")
    keyed_by = tuple(name.strip() for name in names.split(",") if name.strip())
    bootstrap, topics, group = (keywords.pop(name, "") for name in ("bootstrap", "topics", "group"))
    keywords |= of_client(kafka, "consumer") | own_options(options)
    given = {"http": "127.0.0.1:1", "spark": None, "group": group or "group", **keywords}  # the query may say http
    checked(PipelineOptions(bootstrap=bootstrap, topics=topics, **given), Tuning())
    return Source(bootstrap, topics, group, keywords, keyed_by)


def differing(sources: Sequence[Source]) -> list[str]:
    """Return the options that sources do not all have alike, with their values unless they may be secrets."""
    texts, different = [_options_of(source) for source in sources], list[str]()
    for name in dict.fromkeys(itertools.chain(*texts)):
        values = [*dict.fromkeys(options.get(name) or "not given" for options in texts)]
        if len(values) > 1:
            different.append(f"{name} " + ("differs" if _may_be_secret(name) else f"is {' and '.join(values)}"))
    return different


def _options_of(source: Source) -> dict[str, str]:
    """Return a source's options as text, "" for one that is not given; its topics only if they are a pattern."""
    keywords = {"bootstrap": source.bootstrap, "group": source.group, **source.keywords}
    state, clients = keywords.pop("state", State()), {**keywords.pop("security", {}), **keywords.pop("consumer", {})}
    named = {_NAMES[keyword]: value for keyword, value in keywords.items()} | {KEYED_BY: ", ".join(source.keyed_by)}
    named |= {f"{_KAFKA}{name}": value for name, value in clients.items()}
    named |= {f"{_OF_STATE}{name}": getattr(state, name) for name in declared(State)}
    if isinstance(source.topics, str):
        named["subscribePattern"] = source.topics.removeprefix("pattern:")
    return {name: "" if value is None else str(value) for name, value in named.items()}


def _may_be_secret(name: str) -> bool:
    is_plain = name.endswith((".protocol", ".mechanism", ".location"))
    return name == "roster.http_security" or (name.removeprefix(_KAFKA).startswith(_SECURE) and not is_plain)


def of_client(settings: Mapping[str, str], rest: str) -> dict[str, Any]:
    """Divide settings of Kafka's clients into those of security and the rest, as keywords."""
    secure = {name: value for name, value in settings.items() if name.startswith(_SECURE)}
    others = {name: value for name, value in settings.items() if name not in secure}
    return {name: part for name, part in (("security", secure), (rest, others)) if part}


def _near(name: str) -> str:
    """Return the option that is meant by a name in lower case, "" if none is like it."""
    known = {known.lower(): known for known in _READ}
    if name in ("topic", "topics"):
        return "subscribe"
    if f"{_KAFKA}{name}" in known or name in CONSUMER_SETTINGS or name.startswith(_SECURE):
        return f"{_KAFKA}{name}"
    return next((known[near] for near in difflib.get_close_matches(name, known, 1)), "")


def in_words_of_options(error: PipelineError) -> PipelineError:
    """Return an error of a pipeline with the names of options as a query has them."""
    if type(error) is not PipelineError:
        return error
    field, problem, fix = error.field or "", error.problem, error.fix or ""
    if field in ("consumer", "security", "KafkaSink") and (key := _SETTING.match(problem)):
        field, problem = f"{_KAFKA}{key[1]}", problem.removeprefix(f"{key[1]}: ")
        fix = re.sub(r"\b[a-z]+(\.[a-z]+)+\b", lambda name: f"{_KAFKA}{name[0]}", fix)
    if "'pattern:" in problem:
        field, problem = "subscribePattern", problem.replace("'pattern:", "'")
    if store := re.match("'(.+?)' of the group ", problem):
        fix = _MIGRATE_ARGUMENT.sub(lambda said: _as_option(store[1], said[1]), fix)
    fix = _FIXES.get(field, fix)
    problem, fix = (_ARGUMENT.sub(lambda name: _NAMES[name[0]], text) for text in (problem, fix))
    named = PipelineError(problem, field=_NAMES.get(field, field) or None, fix=fix or None)
    named.__cause__ = error.__cause__
    return named


def _as_option(store: str, migrate: str) -> str:
    """Return what says the dict `migrate` of a store."""
    return f".option({json.dumps(MIGRATE)}, '{json.dumps({store: ast.literal_eval(migrate)})}')"


def own_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `Pipeline` that options such as `roster.idle_after` and `roster.state.standbys` say.

    Raises PipelineError for other names below `roster.`, and for a value that is not a number where one is needed.
    """
    keywords: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for name, value in options.items():
        plain = name.lower()
        if plain.startswith(_OF_STATE):
            own = plain.removeprefix(_OF_STATE)
            state[own] = _typed(name, value, State, own)
        elif plain.startswith(_OWN) and plain not in (KEYED_BY, MIGRATE):
            own = plain.removeprefix(_OWN)
            keywords[own] = _typed(name, value, PipelineOptions, own)
    try:
        return keywords | ({"state": State(**state)} if state else {})
    except PipelineError as error:
        raise in_words_of_options(error) from None


def migrations(options: Mapping[str, str]) -> dict[str, Any]:
    """Return what `roster.migrate` says of each state. Raises PipelineError for text that is not a JSON object."""
    said = next((text for name, text in options.items() if name.lower() == MIGRATE), "{}")
    return _object(MIGRATE, said, """'{"hours": {"revenue": "total"}}'""")


def is_own(name: str) -> bool:
    """Return True for the name of an option of Roster."""
    return name.lower().startswith(_OWN)


def _typed(name: str, text: str, declaration: type, own: str) -> Any:
    option = declared(declaration).get(own)
    if option is None or own in _SET_BY_CODE:
        known = [*filter(is_own, _NAMES.values())]
        near = difflib.get_close_matches(name.lower(), known, 1, 0.8)
        fix = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}"
        raise PipelineError("Roster has no option of this name", field=name, fix=fix)
    if option.least is not None:
        return _number(name, text)
    if own == "assignors":
        return [assignor.strip() for assignor in text.split(",")]
    if option.kind == "dict":
        return _object(name, text, """'{"token": "..."}'""")
    return _boolean(name, text) if option.kind == "bool" else text


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise PipelineError(f"{text!r} is not a JSON object", field=name, fix=f"For example {example}")
    return said


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PipelineError(f"{text!r} is not a whole number", field=name) from None


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"{text!r} is neither true nor false", field=name)
    return text.lower() == "true"


def _moment(name: str, text: str) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=_number(name, text))
    except OverflowError:
        raise PipelineError(f"{text} ms are beyond the year 9999", field=name) from None


def _text(_: str, text: str) -> str:
    return text


_READ: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "subscribe": ("topics", lambda _, text: [topic.strip() for topic in text.split(",")]),
    "subscribePattern": ("topics", lambda _, text: f"pattern:{text}"),
    "startingOffsets": ("starting_offsets", lambda _, text: text if text.lstrip().startswith("{") else text.lower()),
    "startingTimestamp": ("starting_offsets", _moment),
    "maxOffsetsPerTrigger": ("max_offsets_per_batch", _number),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "includeHeaders": ("include_headers", _boolean),
    "minPartitions": ("tasks", _number),
    "kafka.bootstrap.servers": ("bootstrap", _text),
    "kafka.group.id": ("group", _text),
    "kafka.isolation.level": ("isolation_level", _text),
}
"""Options of Spark by their names: the keyword, and how its text is read."""
_BY_NAME = {name.lower(): read for name, read in _READ.items()}
_NAMES = {
    **{name: f"{_OWN}{name}" for name in declared(PipelineOptions) if name not in _SET_BY_CODE},
    **{f"State.{name}": f"{_OF_STATE}{name}" for name in declared(State)},
    **{keyword: name for name, (keyword, _) in reversed(_READ.items())},
}
"""Options of a query by the keywords of `Pipeline`."""
_ARGUMENT = re.compile(rf"(?<![\w.])(?:{'|'.join(name for name in _NAMES if '_' in name or '.' in name)}|assignors)\b")
_SETTING = re.compile(r"'?([\w.]+)'?(?:: | must | is (?:not a setting|set by))")
_MIGRATE_ARGUMENT = re.compile(r"migrate=(\{[^{}]*\})")
_FIXES = {
    "starting_offsets": """Use earliest, latest, or JSON such as {"orders": {"0": 23, "1": -1}}""",
    "topics": f"Use {NAME_RULE}, with commas between names",
}
"""Ways out where those of a pipeline say how Python writes it, by the keyword."""
_NEEDED = (("bootstrap", "kafka.bootstrap.servers", "localhost:9092"), ("topics", "subscribe", "orders"))
