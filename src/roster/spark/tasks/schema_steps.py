"""The steps of values with schemas, resolved on the driver, which also asks the registry for those that tasks miss."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.util import find_spec
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster._extras import missing_error
from roster.records.native import AVRO, compiled
from roster.schemas import Registered, Registry, RegistryError
from roster.schemas.json_schema import json_schema
from roster.spark.errors import MissingSchemasError, PipelineError
from roster.spark.tasks.arrow_function import arrow_schema, as_struct
from roster.spark.tasks.avro_values import AvroColumns
from roster.spark.tasks.json_values import FramedJsonColumns
from roster.spark.tasks.protobuf_values import Message, ProtobufColumns, as_spark, files_of, renamed
from roster.spark.tasks.schema_frames import BARE, CONFLUENT, FRAMINGS, ONLY, SINGLE_OBJECT, Key, Known, Writer, framed
from roster.spark.tasks.steps import BatchFunction, check_mode, checked_fields, with_kept
from roster.wire.avro.columns import layout, of_arrow
from roster.wire.avro.program import lacking, with_aliases
from roster.wire.avro.schema import SchemaError, Type, loaded, parse

log = logging.getLogger(__name__)
_JSON = "json_columns"


class Source:
    """Where the driver asks for schemas, and those that it knows; `fetch_missing` finds it as long as it is kept.

    named: the columns that were named, as a reader's schema of Avro; a writer's schema without one is told.
    """

    def __init__(self, registry: Registry, framing: str, column: str) -> None:
        self.registry, self.known = registry, Known(uuid.uuid4().hex, framing, column)
        self.named: Type | None = None
        _SOURCES[self.known.name] = self

    def add(self, registered: Registered, key: Key | None = None) -> None:
        """Know a schema. Raises RegistryError, ValueError for one of Protobuf whose files cannot be had, or read."""
        files = tuple(files_in(self.registry, registered)) if registered.kind == "PROTOBUF" else ()
        references = tuple(text for _, text in registered.references.values())
        key = registered.id if key is None else key
        self.known.writers[key] = Writer(registered.kind, registered.text, references, files)
        self.tell(key)

    def tell(self, key: Key) -> None:
        """Warn of a schema that lacks a named column."""
        if self.named is None or self.known.writers[key].kind != "AVRO":
            return
        with suppress(SchemaError):
            if missing := sorted(set(lacking(self.known.avro(key), self.named))):
                names = ", ".join(map(repr, missing))
                log.warning("schema %s has no field %s: these columns are null in its records", key, names)


_SOURCES: WeakValueDictionary[str, Source] = WeakValueDictionary()
"""By the name that tasks tell when they miss a schema."""


def fetch_missing(error: MissingSchemasError) -> None:
    """Ask for the schemas that a task missed; one that the registry does not have, or refuses, is known as such.

    Raises PipelineError if the registry does not let this client ask.
    """
    source = _SOURCES.get(error.source)
    if source is None:
        raise PipelineError(f"nobody knows where to ask for the schemas {error.keys}", field="registry")
    absent = list[Key]()
    for key in error.keys:
        try:
            registered = source.registry.schema(key)
            if registered is not None:
                source.add(registered, key)
                continue
        except RegistryError as refused:
            if refused.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise unanswered(refused) from None
            if not 400 <= refused.status < 500 or refused.status == HTTPStatus.TOO_MANY_REQUESTS:
                log.warning("schema %s is asked for again: %s", key, refused)
                break
        except ValueError as error_of_files:
            log.warning("schema %s cannot be read: %s", key, error_of_files)
        absent.append(key)
    source.known.note_absent(absent)
    if absent:
        told = ", ".join(map(str, absent[:3])) + (", …" if len(absent) > 3 else "")
        log.warning("%r does not have %d schemas (%s): their records are bad", source.registry, len(absent), told)


def unanswered(error: RegistryError) -> PipelineError:
    """Return the error for a registry that refused."""
    return PipelineError(str(error), field="registry", fix="Check its URL, `auth` and the names of subjects")


def files_in(registry: Registry, registered: Registered) -> list[bytes]:
    """Return the files of a Protobuf schema, in order of their use. Raises RegistryError, ValueError."""
    named = [(name, key) for name, (key, _) in registered.references.items()]
    return [*(renamed(registry.serialized(key), name) for name, key in named), registry.serialized(registered.id)]


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
        _check_framing(self.framing, FRAMINGS)
        check_registry(self.registry)
        for text in self.schemas:
            check_text(text)
        if not (self.registry if self.framing == CONFLUENT else self.schemas):
            fix = "Name registry=Registry(url) for Confluent's frame, schema= for others"
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
        if self.registry is not None and self.framing == CONFLUENT:
            self.kept.append(Source(self.registry, self.framing, self.column))
            return self.kept[-1].known
        known = Known("", self.framing, self.column)
        for text in self.schemas:
            known.writers[fingerprint_of(text) if self.framing == SINGLE_OBJECT else ONLY] = Writer("AVRO", text)
        return known

    def _reader(self, known: Known) -> Type:
        """Return the reader's schema: that of the columns, the last one given, or the latest of the subject."""
        if self.columns is None and self.schemas:
            return parse(self.schemas[-1])
        if self.columns is None:
            latest = latest_of(self.registry, self.subject, "AVRO", "avro_columns")
            self.kept[-1].add(latest)
            return known.avro(latest.id)
        named = of_arrow(pa.struct(list(arrow_schema(as_struct(self.columns, "avro_columns")))), "columns")
        if not self.kept:
            return with_aliases(named, parse(self.schemas[-1]))
        if self.subject is not None and (version := self._latest_if_any()) is not None:
            self.kept[-1].add(version)
            with suppress(SchemaError):  # one that is not read may be what has no columns
                named = with_aliases(named, known.avro(version.id))
        self.kept[-1].named = named
        for key in known.writers:
            self.kept[-1].tell(key)
        return named

    def _latest_if_any(self) -> Registered | None:
        """Return the latest schema of the subject; None if it has none, or one of another kind."""
        assert self.registry is not None and self.subject is not None  # noqa: S101, PT018 - as in `_reader`
        try:
            latest = self.registry.latest(self.subject)
        except RegistryError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise unanswered(error) from None
        return latest if latest.kind == "AVRO" else None


@dataclass(frozen=True)
class ProtobufParsed:
    """The step of `protobuf_columns`."""

    registry: Registry | None
    message: str
    descriptors: bytes | None
    subject: str | None
    column: str
    framing: str
    mode: str
    keep: tuple[str, ...]
    kept: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_mode(self.mode)
        _check_framing(self.framing, (CONFLUENT, BARE))
        check_source(self.registry, self.descriptors, self.message, "protobuf_columns")

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        message, _ = message_of(self.registry, self.descriptors, self.subject, self.message, "protobuf_columns")
        empty = message.handler().schema()
        fields = pa.schema([field.with_type(as_spark(field.type)).with_nullable(True) for field in empty])
        columns = with_kept(from_arrow_schema(fields), given, self.column, self.keep, "protobuf_columns")
        known = None
        if self.registry is not None and self.framing == CONFLUENT:
            self.kept.append(Source(self.registry, CONFLUENT, self.column))
            self.kept[-1].add(latest_of(self.registry, self.subject, "PROTOBUF", "protobuf_columns"))
            known = self.kept[-1].known
        made = ProtobufColumns(message, fields, self.framing, self.column, self.mode, self.keep, known)
        return made, columns


@dataclass(frozen=True)
class FramedJsonParsed:
    """The step of `json_columns` with a registry."""

    registry: Registry
    columns: str | StructType | None
    subject: str | None
    column: str
    mode: str
    keep: tuple[str, ...]
    kept: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_mode(self.mode)
        check_registry(self.registry)

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        self.kept.append(Source(self.registry, CONFLUENT, self.column))
        known = self.kept[-1].known
        if self.columns is not None:
            struct = as_struct(self.columns, _JSON)
            fields = checked_fields(struct)
        else:
            latest = latest_of(self.registry, self.subject, "JSON", _JSON)
            self.kept[-1].add(latest)
            try:
                fields = json_schema(latest.text, {name: text for name, (_, text) in latest.references.items()})
            except SchemaError as error:
                raise PipelineError(str(error), field=_JSON, fix="Name the fields that you need in schema=") from None
            struct = from_arrow_schema(fields, prefer_timestamp_ntz=True)
        columns = with_kept(struct, given, self.column, self.keep, _JSON)
        return FramedJsonColumns(fields, known, self.mode, self.keep), columns


def check_registry(registry: object) -> None:
    """Raise PipelineError for something else than a registry or None."""
    if not isinstance(registry, Registry | None):
        raise PipelineError(f"{registry!r} is none", field="registry", fix="Use Registry(url) of roster.spark")


def check_text(schema: object) -> None:
    """Raise PipelineError for a schema that is no text."""
    if not isinstance(schema, str):
        raise PipelineError(f"{schema!r} is no text", field="schema", fix="Use json.dumps(...) of it")


def check_source(registry: Registry | None, descriptors: bytes | None, message: str, field: str) -> None:
    """Raise PipelineError without the extra, without one source of descriptors, or if it does not say which message."""
    if find_spec("ptars") is None:  # which brings protobuf
        raise PipelineError(str(missing_error(field, "protobuf", ["ptars"])))
    check_registry(registry)
    if (registry is None) == (descriptors is None):
        fix = "Name registry=Registry(url), or descriptors= of `protoc --include_imports --descriptor_set_out`"
        raise PipelineError("one source of descriptors is needed", field=field, fix=fix)
    if descriptors is not None and not message:
        raise PipelineError("descriptors may have many", field="message", fix="Name one, such as 'shop.Order'")


def message_of(
    registry: Registry | None, descriptors: bytes | None, subject: str | None, name: str, field: str
) -> tuple[Message, bytes]:
    """Return a message, and what values begin with: the frame with the schema's id. Raises PipelineError."""
    try:
        frame = b""
        if registry is None:
            files = files_of(descriptors or b"")
        else:
            latest = latest_of(registry, subject, "PROTOBUF", field)
            files = files_in(registry, latest)
            frame = framed(latest.id)
        if not files:
            raise ValueError("the descriptors have no file")
        message = Message(files, name)
        message.handler().schema()
    except RegistryError as error:
        raise unanswered(error) from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        problem = f"no columns of message {name!r}: {error}".replace("\n", " ")
        raise PipelineError(problem, field=field, fix="Check message= and the descriptors") from None
    return message, frame + message.prefix if frame else b""


def fingerprint_of(text: str) -> int:
    """Return the CRC-64-AVRO of a schema's canonical form, signed. Raises SchemaError, MissingExtraError."""
    if find_spec("fastavro") is None:
        raise missing_error("avro_columns(framing='single-object')", "avro", ["fastavro"])
    from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form  # noqa: PLC0415 - an extra

    parse(text)
    try:
        digest = fingerprint(to_parsing_canonical_form(loaded(text)), "CRC-64-AVRO")
    except SchemaParseException as error:
        raise SchemaError(str(error)) from None
    return int.from_bytes(bytes.fromhex(digest), "little", signed=True)


def _check_framing(framing: str, framings: Sequence[str]) -> None:
    if framing not in framings:
        raise PipelineError(f"{framing!r} is none", field="framing", fix=f"Use one of {', '.join(framings)}")


def latest_of(registry: Registry | None, subject: str | None, kind: str, field: str) -> Registered:
    """Return the latest schema of a subject. Raises PipelineError."""
    if subject is None or registry is None:
        raise PipelineError("there is no one topic to name the subject by", field=field, fix="Name subject=")
    try:
        latest = registry.latest(subject)
    except RegistryError as error:
        raise unanswered(error) from None
    if latest.kind != kind:
        raise PipelineError(f"{subject} is of type {latest.kind}, not {kind}", field="subject", fix="Name another")
    return latest
