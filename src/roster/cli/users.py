"""`roster users`: credentials in a data directory of Roster's broker or on any Kafka."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.options import NAME, Target, cluster_options, confirm, json_option, yes_option
from roster.cli.output import print_json, print_table
from roster.wire.sasl.scram import MECHANISM_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.broker.security.store import SecurityStore

_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data directory of a `roster broker` that is stopped, instead of a running cluster.",
)


@click.group()
def users() -> None:
    """List, add and remove users who log in with SCRAM or PLAIN.

    With --data in the data directory of a stopped `roster broker`, else by requests to a running cluster.
    """


@users.command(name="list", short_help="List users and their mechanisms.")
@_data_option
@json_option
@cluster_options
def list_(data: Path | None, as_json: bool, target: Target) -> None:
    """List users with their mechanisms; nothing of their passwords is shown."""
    if data is None:
        with admin(target) as cluster:
            by_user = cluster.list_users()
    else:
        with _store(data) as store:
            every = sorted(store.users.items())
        by_user = {name: {which: credential.iterations for which, credential in known.items()} for name, known in every}
    if as_json:
        print_json(by_user)
        return
    rows = [(name, mechanism, count) for name, known in by_user.items() for mechanism, count in known.items()]
    print_table(("user", "mechanism", "iterations"), rows, "no users", shorten=("user",))


@users.command(short_help="Add a user, or change a password.")
@click.argument("name", type=NAME)
@_data_option
@cluster_options
def add(name: str, data: Path | None, target: Target) -> None:
    """Add user NAME, or change the password, which is asked for or read from standard input.

    The user can log in with both mechanisms of SCRAM, and with PLAIN where the broker is Roster's.
    """
    password = _password()
    if data is None:
        with admin(target) as cluster:
            cluster.set_password(name, password)
    else:
        from roster.broker.security.store import new_credential

        known = {mechanism: new_credential(mechanism, password) for mechanism in MECHANISM_NUMBERS}
        with _store(data) as store:
            store.save({**store.users, name: {**store.users.get(name, {}), **known}}, store.acls)
    click.echo(f"user {name} logs in with {' or '.join(MECHANISM_NUMBERS)}")


@users.command(short_help="Remove a user.")
@click.argument("name", type=NAME)
@_data_option
@yes_option
@cluster_options
def remove(name: str, data: Path | None, yes: bool, target: Target) -> None:
    """Remove user NAME, who cannot log in any more. Asks first."""
    confirm(yes, f"Remove user {name}?")
    if data is None:
        with admin(target) as cluster:
            cluster.remove_user(name)
    else:
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
def _store(data: Path) -> Iterator[SecurityStore]:
    """Open the users of a data directory that no broker holds."""
    from roster.broker import BrokerStartError
    from roster.broker.log.files import DirectoryLock
    from roster.broker.security.store import SecurityStore

    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(data / "lock")
        lock.acquire()
        try:
            store = SecurityStore(data)
            store.load()
            yield store
        finally:
            lock.release()
    except BrokerStartError as error:
        raise Failure(f"--data: {error}; while the broker runs, give --bootstrap instead of --data") from error
    except OSError as error:
        raise Failure(f"--data: cannot use {data}: {error.strerror}") from error
