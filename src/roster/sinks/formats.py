"""What a `KafkaSink` writes with schemas, which the driver finds or registers before work begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

import pyarrow as pa

from roster.pipeline.errors import PipelineError
from roster.pipeline.registry_schemas import check_registry, check_text, latest_of, unanswered
from roster.pipeline.tasks.schema_frames import framed
from roster.records.native import AVRO_ENCODE, compiled
from roster.schemas import Registry, RegistryError
from roster.schemas.json_schema import json_schema_of, json_type
from roster.sinks.tasks.encoded_values import AvroValues, Encoding, JsonValues
from roster.wire.avro.columns import schema_of
from roster.wire.avro.schema import SchemaError, parse

_FIELD = "KafkaSink"


@dataclass(frozen=True)
class Avro:
    """Keys or values of a `KafkaSink` as Avro: in Confluent's frame with a registry, else without a frame.

    schema: as text; it is registered under the subject if it is not there yet. None: the latest of the subject; if
    there is none, one is made of the columns and registered. Columns are written as the types of their names: narrow
    ones as wider ones, missing ones as their default or null. subject: None: the topic's name with `-value` or `-key`.
    """

    registry: Registry | None = None
    schema: str | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if self.registry is None and self.schema is None:
            raise PipelineError("there is no schema", field="Avro", fix="Name registry=Registry(url), or schema=")
        check_registry(self.registry)
        check_text(self.schema or "")

    def encoding(self, values: pa.DataType, subject: str | None) -> Encoding:
        """Return what encodes values of this type. Raises PipelineError, SchemaError if they do not fit."""
        if self.registry is None:
            return _avro(self.schema or "", {}, b"")
        return _found(self.registry, "AVRO", self.schema, subject, values, schema_of, _avro)


@dataclass(frozen=True)
class JsonSchema:
    """Keys or values of a `KafkaSink` as JSON in Confluent's frame, by a JSON Schema.

    schema and subject: as for `Avro`. Columns are written as the types of their names; dates, times and decimals also
    as text. Null is left out where the schema does not require the field.
    """

    registry: Registry
    schema: str | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        check_registry(self.registry)
        check_text(self.schema or "")

    def encoding(self, values: pa.DataType, subject: str | None) -> Encoding:
        """Return what encodes values of this type. Raises PipelineError, SchemaError if they do not fit."""
        return _found(self.registry, "JSON", self.schema, subject, values, json_schema_of, _json)


Format: TypeAlias = Avro | JsonSchema


def check_format(form: object, part: str) -> None:
    """Raise PipelineError for something else than a format or None."""
    if not isinstance(form, Format | None):
        fix = "Use Avro(registry) or JsonSchema(registry)"
        raise PipelineError(f"{form!r} is not a format", field=f"{part} of {_FIELD}", fix=fix)


def encoding_of(form: Format | None, values: pa.DataType, topic: str | None, part: str) -> Encoding | None:
    """Return what encodes values of this type as the "key" or "value" of a topic's records. Raises PipelineError."""
    if form is None:
        return None
    subject = form.subject or (None if topic is None else f"{topic}-{part}")
    try:
        encoding = form.encoding(values, subject)
        _check(encoding, values)
    except SchemaError as error:
        fix = f"Cast the column or leave it out, or register a schema that fits as subject {subject!r}"
        raise PipelineError(str(error), field=f"{part} of {_FIELD}", fix=fix) from None
    return encoding


def _avro(text: str, references: Mapping[str, str], frame: bytes) -> Encoding:
    return AvroValues(parse(text, tuple(references.values())), frame, compiled(AVRO_ENCODE))


def _json(text: str, references: Mapping[str, str], frame: bytes) -> Encoding:
    return JsonValues(json_type(text, references), frame)


def _found(
    registry: Registry,
    kind: str,
    text: str | None,
    subject: str | None,
    values: pa.DataType,
    derived: Callable[[pa.DataType, str], Any],
    made: Callable[[str, Mapping[str, str], bytes], Encoding],
) -> Encoding:
    """Return what encodes by the schema that is given, or made of the columns, or else by the subject's latest."""
    try:
        if text is None and subject is not None and not registry.has(subject):
            text = json.dumps(derived(values, _name(subject)))
        if text is not None and subject is not None:
            _check(made(text, {}, b""), values)  # before it is there for ever
            return made(text, {}, framed(registry.register(subject, text, kind)))
    except RegistryError as error:
        raise _refused(error, subject) from None
    latest = latest_of(registry, subject, kind, _FIELD)
    return made(latest.text, {name: reference for name, (_, reference) in latest.references.items()}, framed(latest.id))


def _name(subject: str) -> str:
    return re.sub(r"\W|^(?=\d)", "_", subject, flags=re.ASCII)


def _check(encoding: Encoding, values: pa.DataType) -> None:
    """Raise SchemaError if the columns do not fit."""
    encoding.encoded(pa.array([], values), "" if pa.types.is_struct(values) else "key")


def _refused(error: RegistryError, subject: str | None) -> PipelineError:
    if error.status == HTTPStatus.CONFLICT:
        problem = f"the schema is not compatible with those of subject {subject!r}: {error}"
        fix = "Give new fields defaults and keep the types of others, or name another subject="
        return PipelineError(problem, field=_FIELD, fix=fix)
    if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        fix = f"Register the schema as subject {subject!r} beforehand, or let this client write there"
        return PipelineError(str(error), field=_FIELD, fix=fix)
    return unanswered(error)
