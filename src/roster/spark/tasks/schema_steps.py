"""The steps of values with schemas, resolved on the driver, which also asks the registry for those that tasks miss."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster.records.native import AVRO, compiled
from roster.schemas import Registered, Registry, RegistryError
from roster.spark.errors import MissingSchemasError, PipelineError
from roster.spark.tasks.arrow_function import arrow_schema, as_struct
from roster.spark.tasks.avro_values import AvroColumns
from roster.spark.tasks.schema_frames import FRAMINGS, ONLY, SINGLE_OBJECT, Key, Known, Writer
from roster.spark.tasks.steps import BatchFunction, check_mode, with_kept
from roster.wire.avro.columns import layout, of_arrow
from roster.wire.avro.fingerprint import fingerprint
from roster.wire.avro.schema import SchemaError, Type, parse

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Source:
    """Where the driver asks for schemas, and those that it knows."""

    registry: Registry
    known: Known

    def fetch(self, keys: Sequence[Key]) -> None:
        """Ask for schemas; one that the registry does not have is known as such. Raises PipelineError."""
        for key in keys:
            try:
                registered = self.registry.schema(key)
            except RegistryError as error:
                if 400 <= error.status < 500:
                    raise unanswered(error) from None
                log.warning("schema %s is asked for again: %s", key, error)
                return
            if registered is None:
                log.warning("%r has no schema %s: its records are bad", self.registry, key)
            self.known.writers[key] = None if registered is None else writer_of(registered)


_SOURCES: WeakValueDictionary[str, Source] = WeakValueDictionary()
"""By the name that tasks tell when they miss a schema."""


def source_of(registry: Registry, framing: str, column: str) -> Source:
    """Return a source that `fetch_missing` finds as long as somebody keeps it."""
    made = Source(registry, Known(uuid.uuid4().hex, framing, column))
    _SOURCES[made.known.name] = made
    return made


def fetch_missing(error: MissingSchemasError) -> None:
    """Ask for the schemas that a task missed. Raises PipelineError."""
    source = _SOURCES.get(error.source)
    if source is None:
        raise PipelineError(f"nobody knows where to ask for the schemas {error.keys}", field="registry")
    source.fetch(error.keys)


def unanswered(error: RegistryError) -> PipelineError:
    """Return the error for a registry that refused."""
    return PipelineError(str(error), field="registry", fix="Check its URL, `auth` and the names of subjects")


def writer_of(registered: Registered) -> Writer:
    """Return what tasks need of a schema."""
    return Writer(registered.kind, registered.text, tuple(registered.references.values()))


@dataclass(frozen=True)
class AvroParsed:
    """The step of `avro_columns`."""

    registry: Registry | None
    columns: str | StructType | None
    schemas: tuple[str, ...]
    subject: str | None
    column: str
    framing: str
    mode: str
    keep: tuple[str, ...]
    kept: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if self.framing not in FRAMINGS:
            raise PipelineError(f"{self.framing!r} is none", field="framing", fix=f"Use one of {', '.join(FRAMINGS)}")
        if self.registry is None and not self.schemas:
            problem = "the writers' schemas are not known"
            raise PipelineError(problem, field="avro_columns", fix="Name registry=Registry(url), or schema=")

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        known = self._known()
        try:
            schema = self._reader(known)
            fields = pa.schema(list(layout(schema).schema))
        except SchemaError as error:
            raise PipelineError(
                str(error), field="avro_columns", fix="Name the fields that you need in columns="
            ) from None
        struct = as_struct(from_arrow_schema(fields, prefer_timestamp_ntz=True))
        if self.columns is not None:
            struct = as_struct(self.columns, "avro_columns")
        columns = with_kept(struct, given, self.column, self.keep, "avro_columns")
        return AvroColumns(schema, fields, known, compiled(AVRO), self.column, self.mode, self.keep), columns

    def _known(self) -> Known:
        if self.registry is not None:
            source = source_of(self.registry, self.framing, self.column)
            self.kept.append(source)
            return source.known
        known = Known("", self.framing, self.column)
        for text in self.schemas:
            try:
                key: Key = fingerprint(text) if self.framing == SINGLE_OBJECT else ONLY
            except SchemaError as error:
                raise PipelineError(str(error), field="schema") from None
            known.writers[key] = Writer("AVRO", text)
        return known

    def _reader(self, known: Known) -> Type:
        """Return the reader's schema: that of the columns, the last one given, or the latest of the subject."""
        if self.columns is not None:
            return of_arrow(pa.struct(list(arrow_schema(as_struct(self.columns, "avro_columns")))), "columns")
        if self.schemas:
            return parse(self.schemas[-1])
        if self.subject is None or self.registry is None:
            fix = "Name columns= or subject="
            raise PipelineError("there is no one topic to name the subject by", field="avro_columns", fix=fix)
        try:
            latest = self.registry.latest(self.subject)
        except RegistryError as error:
            raise unanswered(error) from None
        known.writers[latest.id] = writer_of(latest)
        return known.avro(latest.id)
