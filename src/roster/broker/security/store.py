"""The file `security.json` of a data directory: users with salted hashes, and ACLs. Only its owner may read it."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path

from roster._files import write_atomically
from roster._json import JsonObject
from roster.broker.checked_json import encode_checked, read_checked
from roster.broker.errors import BrokerStartError
from roster.model.acl import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from roster.wire.sasl.scram import DEFAULT_ITERATIONS, HASHES, SALT_BYTES, ScramCredential

FILE = "security.json"
FORMAT = 1
_FIELDS = frozenset({"format", "users", "acls"})
_BYTES = ("salt", "stored_key", "server_key")
_OWNER_ONLY = 0o600

Users = dict[str, dict[str, ScramCredential]]
"""Credentials by user and mechanism."""


def new_credential(mechanism: str, password: str, iterations: int = DEFAULT_ITERATIONS) -> ScramCredential:
    """Return a credential with a new salt; takes milliseconds."""
    return ScramCredential.of_password(mechanism, password, secrets.token_bytes(SALT_BYTES), iterations)


class SecurityStore:
    """Users and ACLs in memory, and durably in their file before a change counts."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / FILE
        self.users: Users = {}
        self.acls: frozenset[AclBinding] = frozenset()
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of the ACLs."""
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Read the file; BrokerStartError if it is damaged. Without one there are no users and no ACLs."""
        try:
            what = read_checked(self.path, _FIELDS)
        except FileNotFoundError:
            return
        try:
            if what["format"] != FORMAT:
                raise BrokerStartError(
                    f"{self.path}: format {what['format']} is not {FORMAT}, the one this version reads"
                )
            self.users = {name: _credentials(known) for name, known in what["users"].items()}
            self.acls = frozenset(_acl(entry) for entry in what["acls"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokerStartError(f"{self.path} does not describe users and ACLs: {error!r}") from error

    def find(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism."""
        return self.users.get(name, {}).get(mechanism)

    def save(self, users: Users, acls: Iterable[AclBinding]) -> None:
        """Replace the file durably, then the copy in memory; for a program that holds the directory, or a thread."""
        acls = frozenset(acls)
        what = {
            "format": FORMAT,
            "users": {name: _described(known) for name, known in sorted(users.items())},
            "acls": [_entry(acl) for acl in sorted(acls)],
        }
        write_atomically(self.path, encode_checked(what), mode=_OWNER_ONLY)
        self.users, self.acls = users, acls

    async def change(self, change: Callable[[Users, set[AclBinding]], None]) -> None:
        """Apply a change to copies of users and ACLs, and make it durable; OSError leaves all as it was."""
        async with self._changing:
            users = {name: dict(known) for name, known in self.users.items()}
            acls = set(self.acls)
            change(users, acls)
            users = {name: known for name, known in users.items() if known}
            if users != self.users or acls != self.acls:
                await asyncio.to_thread(self.save, users, acls)
                self.on_change()


def _credentials(known: JsonObject) -> dict[str, ScramCredential]:
    return {
        mechanism: ScramCredential(
            mechanism, int(value["iterations"]), *(base64.b64decode(value[key], validate=True) for key in _BYTES)
        )
        for mechanism, value in known.items()
    }


def _described(known: Mapping[str, ScramCredential]) -> dict[str, object]:
    return {
        mechanism: {
            "iterations": known[mechanism].iterations,
            **{name: base64.b64encode(getattr(known[mechanism], name)).decode() for name in _BYTES},
        }
        for mechanism in HASHES
        if mechanism in known
    }


def _acl(entry: JsonObject) -> AclBinding:
    return AclBinding(
        ResourceType[entry["resource_type"]],
        str(entry["resource_name"]),
        PatternType[entry["pattern_type"]],
        str(entry["principal"]),
        str(entry["host"]),
        AclOperation[entry["operation"]],
        AclPermission[entry["permission"]],
    )


def _entry(acl: AclBinding) -> dict[str, str]:
    return {key: value.name if isinstance(value, IntEnum) else value for key, value in asdict(acl).items()}
