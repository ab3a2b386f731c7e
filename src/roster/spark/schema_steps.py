"""The steps of values with schemas, resolved on the driver."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.registry_schemas import (
    Source,
    check_registry,
    check_text,
    latest_of,
    unanswered,
)
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.avro_values import BARE, ONLY, AvroColumns, Known, Writer
from roster.pipeline.tasks.steps import BatchFunction
from roster.records.native import AVRO, compiled
from roster.schemas import Registered, Registry, RegistryError
from roster.spark.steps import check_mode, with_kept
from roster.wire.avro.columns import layout, of_arrow
from roster.wire.avro.program import with_aliases
from roster.wire.avro.schema import SchemaError, Type, parse


@dataclass(frozen=True)
class AvroParsed:
    """The step of `avro_columns`."""

    registry: Registry | None
    columns: str | StructType | None
    schema: str | None
    subject: str | None
    column: str
    mode: str
    keep: tuple[str, ...]
    kept: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_mode(self.mode)
        check_registry(self.registry)
        check_text(self.schema or "")
        if self.registry is None and not self.schema:
            fix = "Name registry=Registry(url) for Confluent's frame, schema= for values without one"
            raise PipelineError("the writers' schemas are not known", field="avro_columns", fix=fix)

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        try:
            known = self._known()
            schema = self._reader(known)
            fields = pa.schema(list(layout(schema).schema))
        except SchemaError as error:
            fix = "Correct the schema, or name the fields that you need in columns="
            raise PipelineError(str(error), field="avro_columns", fix=fix) from None
        struct = self.columns or from_arrow_schema(fields, prefer_timestamp_ntz=True)
        columns = with_kept(as_struct(struct, "avro_columns"), given, self.column, self.keep, "avro_columns")
        return AvroColumns(schema, fields, known, compiled(AVRO), self.column, self.mode, self.keep), columns

    def _known(self) -> Known:
        if self.registry is not None:
            self.kept.append(Source(self.registry, self.column))
            return self.kept[-1].known
        return Known("", BARE, self.column, {ONLY: Writer("AVRO", self.schema or "")})

    def _reader(self, known: Known) -> Type:
        """Return the reader's schema: that of the columns, the one given, or the latest of the subject."""
        if self.columns is None and self.schema:
            return parse(self.schema)
        if self.columns is None:
            latest = latest_of(self.registry, self.subject, "avro_columns")
            self.kept[-1].add(latest)
            return known.avro(latest.id)
        named = of_arrow(pa.struct(list(arrow_schema(as_struct(self.columns, "avro_columns")))), "columns")
        if not self.kept:
            return with_aliases(named, parse(self.schema or ""))
        if self.subject is not None and (version := self._latest_if_any()) is not None:
            self.kept[-1].add(version)
            with suppress(SchemaError):  # this schema may not be a record
                named = with_aliases(named, known.avro(version.id))
        self.kept[-1].named = named
        for key in known.writers:
            self.kept[-1].tell(key)
        return named

    def _latest_if_any(self) -> Registered | None:
        """Return the latest schema of the subject; None if it has none, or one of another kind."""
        assert self.registry is not None and self.subject is not None  # noqa: PT018 - as in `_reader`
        try:
            latest = self.registry.latest(self.subject)
        except RegistryError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise unanswered(error) from None
        return latest if latest.kind == "AVRO" else None
