"""Schemas that the driver has or asks a registry for: those that a user names, and those that tasks miss."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from http import HTTPStatus
from weakref import WeakValueDictionary

from roster.pipeline.errors import MissingSchemasError, PipelineError
from roster.pipeline.tasks.avro_values import CONFLUENT, Key, Known, Writer
from roster.schemas import Registered, Registry, RegistryError
from roster.wire.avro.program import lacking
from roster.wire.avro.schema import SchemaError, Type

log = logging.getLogger("roster.spark")


class Source:
    """Where the driver asks for schemas, and those that it knows; `fetch_missing` finds it as long as it is kept.

    named: the columns that were named, as a reader's schema of Avro; a writer's schema without one is told.
    """

    def __init__(self, registry: Registry, column: str) -> None:
        self.registry, self.known = registry, Known(uuid.uuid4().hex, CONFLUENT, column)
        self.named: Type | None = None
        _SOURCES[self.known.name] = self

    def add(self, registered: Registered, key: Key | None = None) -> None:
        """Know a schema."""
        references = tuple(text for _, text in registered.references.values())
        key = registered.id if key is None else key
        self.known.writers[key] = Writer(registered.kind, registered.text, references)
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
        raise PipelineError(f"no registry is configured for schema ids {error.keys}", field="registry")
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
        absent.append(key)
    source.known.note_absent(absent)
    if absent:
        shown = ", ".join(map(str, absent[:3])) + (", …" if len(absent) > 3 else "")
        log.warning("%r does not have %d schemas (%s): their records are bad", source.registry, len(absent), shown)


def unanswered(error: RegistryError) -> PipelineError:
    """Return the error for a registry that refused."""
    return PipelineError(str(error), field="registry", fix="Check its URL, `auth` and the names of subjects")


def check_registry(registry: object) -> None:
    """Raise PipelineError for something else than a registry or None."""
    if not isinstance(registry, Registry | None):
        raise PipelineError(f"{registry!r} is none", field="registry", fix="Use Registry(url) of roster.spark")


def check_text(schema: object) -> None:
    """Raise PipelineError for a schema that is not text."""
    if not isinstance(schema, str):
        raise PipelineError(f"{schema!r} is not a text", field="schema", fix="Use json.dumps(...) of it")


def latest_of(registry: Registry | None, subject: str | None, field: str) -> Registered:
    """Return the latest schema of a subject, which is of Avro. Raises PipelineError."""
    if subject is None or registry is None:
        raise PipelineError("there is no one topic to name the subject by", field=field, fix="Name subject=")
    try:
        latest = registry.latest(subject)
    except RegistryError as error:
        raise unanswered(error) from None
    if latest.kind != "AVRO":
        raise PipelineError(f"{subject} is of type {latest.kind}, not AVRO", field="subject", fix="Name another")
    return latest
