"""What a `KafkaSink` writes with schemas, which the driver finds or registers before work begins."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import pyarrow as pa

from roster.pipeline.errors import PipelineError
from roster.pipeline.registry_schemas import check_registry, check_text, latest_of, unanswered
from roster.pipeline.tasks.avro_values import framed
from roster.records.native import AVRO_ENCODE, compiled
from roster.schemas import Registry, RegistryError
from roster.sinks.tasks.encoded_values import AvroValues
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

    def encoding(self, values: pa.DataType, subject: str | None) -> AvroValues:
        """Return what encodes values of this type. Raises PipelineError, SchemaError if they do not fit."""
        if self.registry is None:
            return _values(self.schema or "")
        try:
            text = self.schema
            if text is None and subject is not None and not self.registry.has(subject):
                text = json.dumps(schema_of(values, _name(subject)))
            if text is not None and subject is not None:
                _check(_values(text), values)  # before it is there for ever
                return _values(text, framed(self.registry.register(subject, text)))
        except RegistryError as error:
            raise _refused(error, subject) from None
        latest = latest_of(self.registry, subject, _FIELD)
        return _values(latest.text, framed(latest.id), [text for _, text in latest.references.values()])


def check_format(form: object, part: str) -> None:
    """Raise PipelineError for something else than a format or None."""
    if not isinstance(form, Avro | None):
        raise PipelineError(f"{form!r} is not a format", field=f"{part} of {_FIELD}", fix="Use Avro(registry)")


def encoding_of(form: Avro | None, values: pa.DataType, topic: str | None, part: str) -> AvroValues | None:
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


def _values(text: str, frame: bytes = b"", references: Sequence[str] = ()) -> AvroValues:
    return AvroValues(parse(text, tuple(references)), frame, compiled(AVRO_ENCODE))


def _name(subject: str) -> str:
    return re.sub(r"\W|^(?=\d)", "_", subject, flags=re.ASCII)


def _check(encoding: AvroValues, values: pa.DataType) -> None:
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
