"""`roster users`: credentials in a data directory of Roster's broker."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roster.cli.errors import Failure, UserError
from roster.cli.options import NAME, confirm, json_option, yes_option
from roster.cli.output import print_json, print_table
from roster.wire.sasl.scram import MECHANISM_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.broker.security.store import SecurityStore

_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data directory of the broker.",
)


@click.group()
def users() -> None:
    """List users who log in to a `roster broker` with SCRAM or PLAIN; add and remove them while it is stopped.

    While it runs, Kafka's `kafka-configs.sh --alter --entity-type users` does that, and other libraries' admin clients.
    """


@users.command(name="list", short_help="List users and their mechanisms.")
@_data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List users with their mechanisms, also of a running broker; nothing of their passwords is shown."""
    with _store(data, changes=False) as store:
        every = sorted(store.users.items())
    by_user = {name: {which: credential.iterations for which, credential in known.items()} for name, known in every}
    rows = [(name, mechanism, count) for name, known in by_user.items() for mechanism, count in known.items()]
    if as_json:
        print_json(by_user)
    else:
        print_table(("user", "mechanism", "iterations"), rows, "no users", shorten=("user",))


@users.command(short_help="Add a user, or change a password.")
@click.argument("name", type=NAME)
@_data_option
def add(name: str, data: Path) -> None:
    """Add user NAME, or change the password, which is asked for or read from standard input.

    The user can log in with PLAIN and both mechanisms of SCRAM.
    """
    password = _password()
    with _store(data) as store:
        from roster.broker.security.store import new_credential

        known = {mechanism: new_credential(mechanism, password) for mechanism in MECHANISM_NUMBERS}
        store.save({**store.users, name: {**store.users.get(name, {}), **known}}, store.acls)
    click.echo(f"user {name} logs in with {' or '.join(MECHANISM_NUMBERS)}")


@users.command(short_help="Remove a user.")
@click.argument("name", type=NAME)
@_data_option
@yes_option
def remove(name: str, data: Path, yes: bool) -> None:
    """Remove user NAME, who cannot log in any more. Asks first."""
    confirm(yes, f"Remove user {name}?")
    with _store(data) as store:
        if name not in store.users:
            raise UserError(f"there is no user {name!r}")
        store.save({other: known for other, known in store.users.items() if other != name}, store.acls)
    click.echo(f"removed user {name}")


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UserError("the password is empty; write it to standard input")
    return password


@contextlib.contextmanager
def _store(data: Path, *, changes: bool = True) -> Iterator[SecurityStore]:
    """Open the users of a data directory; to change them, of one that no broker holds."""
    from roster.broker import BrokerStartError
    from roster.broker.log.files import DirectoryLock
    from roster.broker.security.store import SecurityStore

    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(data / "lock")
        if changes:
            lock.acquire()
        try:
            store = SecurityStore(data)
            store.load()
            yield store
        finally:
            lock.release()
    except BrokerStartError as error:
        raise Failure(f"--data: {error}; while the broker runs, kafka-configs.sh changes its users") from error
    except OSError as error:
        raise Failure(f"--data: cannot use {data}: {error.strerror}") from error
