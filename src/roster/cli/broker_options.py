"""Options of `roster broker` in groups: security, limits. Names are Kafka's where Kafka has the setting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from roster.broker import BrokerConfig
from roster.broker.security.config import CLIENT_AUTH, MECHANISMS, PROTOCOLS
from roster.coordinator import CoordinatorConfig

C = TypeVar("C", bound=Callable[..., object])

_INT32_MAX = 2**31 - 1
_BROKER = BrokerConfig(data_dir=Path())
_GROUPS = CoordinatorConfig()
_FILE = click.Path(path_type=Path, dir_okay=False)
_POSITIVE = click.IntRange(1, _INT32_MAX)

_SECURITY = (
    click.option(
        "--security-protocol",
        "protocol",
        type=click.Choice(PROTOCOLS),
        default="PLAINTEXT",
        show_default=True,
        help="What the listener speaks: TLS or not, logins (SASL) or not.",
    ),
    click.option("--ssl-keystore-location", type=_FILE, help="PEM file with the broker's key and certificates."),
    click.option("--ssl-key-password-file", type=_FILE, help="File with the password of that key."),
    click.option("--ssl-truststore-location", type=_FILE, help="PEM file of the CAs that sign clients' certificates."),
    click.option(
        "--ssl-client-auth",
        type=click.Choice(CLIENT_AUTH),
        default="none",
        show_default=True,
        help="Whether clients show a certificate.",
    ),
    click.option(
        "--ssl-principal-mapping-rules",
        default="DEFAULT",
        show_default=True,
        help="How a certificate's name becomes a user, as in RULE:^CN=([a-z]+).*$/$1/.",
    ),
    click.option(
        "--sasl-enabled-mechanisms",
        metavar="NAME[,…]",
        default=",".join(MECHANISMS[1:]),
        show_default=True,
        callback=lambda _context, _parameter, value: _names(value, ","),
        help=f"Of {', '.join(MECHANISMS)}.",
    ),
    click.option(
        "--connections-max-reauth-ms",
        type=click.IntRange(0, _INT32_MAX),
        default=0,
        show_default=True,
        help="How long a login lasts before it has to be renewed; 0: as long as the connection.",
    ),
    click.option("--authorizer", is_flag=True, help="Let ACLs decide what a client may do; without, all may do all."),
    click.option(
        "--super-users",
        metavar="User:NAME[;…]",
        default="",
        callback=lambda _context, _parameter, value: frozenset(_names(value, ";")),
        help="Principals that may do everything.",
    ),
    click.option(
        "--allow-everyone-if-no-acl-found", is_flag=True, help="Let all use a resource for which there is no ACL."
    ),
    click.option("--allow-plaintext", is_flag=True, help="Listen without TLS where other machines can connect."),
)

_LIMITS = (
    click.option(
        "--max-connections",
        type=_POSITIVE,
        default=_BROKER.max_connections,
        show_default=True,
        help="Connections at the same time.",
    ),
    click.option(
        "--max-connections-per-ip",
        type=_POSITIVE,
        default=_BROKER.max_connections_per_ip,
        show_default=True,
        help="The same from one address.",
    ),
    click.option(
        "--connection-setup-timeout-ms",
        type=_POSITIVE,
        default=_BROKER.connection_setup_timeout_ms,
        show_default=True,
        help="How long TLS handshake, login and first request may take.",
    ),
    click.option(
        "--receive-timeout-ms",
        type=_POSITIVE,
        default=_BROKER.receive_timeout_ms,
        show_default=True,
        help="How long a client may take for 64 KiB of a request.",
    ),
    click.option(
        "--send-timeout-ms",
        type=_POSITIVE,
        default=_BROKER.send_timeout_ms,
        show_default=True,
        help="How long a client may take to read 64 KiB of a response.",
    ),
    click.option(
        "--connections-max-idle-ms",
        "idle_timeout_ms",
        type=_POSITIVE,
        default=_BROKER.idle_timeout_ms,
        show_default=True,
        help="After how long without a request a connection is closed.",
    ),
    click.option(
        "--socket-request-max-bytes",
        "max_request_bytes",
        type=_POSITIVE,
        default=_BROKER.max_request_bytes,
        show_default=True,
        help="Bytes of the largest request.",
    ),
    click.option(
        "--max-buffered-bytes",
        type=_POSITIVE,
        default=_BROKER.max_buffered_bytes,
        show_default=True,
        help="Bytes of all large requests being received, and of all responses not sent yet.",
    ),
    click.option(
        "--max-in-flight",
        "max_unanswered",
        type=_POSITIVE,
        default=_BROKER.max_unanswered,
        show_default=True,
        help="Produce requests of one connection that wait for the disk at the same time.",
    ),
)

_GROUP_LIMITS = (
    click.option(
        "--group-max-size",
        "max_group_size",
        type=_POSITIVE,
        default=_GROUPS.max_group_size,
        show_default=True,
        help="Members of a group.",
    ),
    click.option(
        "--group-max-pending-members",
        "max_pending_members",
        type=_POSITIVE,
        default=_GROUPS.max_pending_members,
        show_default=True,
        help="Member ids of a group given out and not used yet.",
    ),
    click.option(
        "--member-max-metadata-bytes",
        "max_member_metadata_bytes",
        type=_POSITIVE,
        default=_GROUPS.max_member_metadata_bytes,
        show_default=True,
        help="Bytes of a member's metadata.",
    ),
    click.option(
        "--group-max-metadata-bytes",
        "max_group_metadata_bytes",
        type=_POSITIVE,
        default=_GROUPS.max_group_metadata_bytes,
        show_default=True,
        help="Bytes of the metadata of all members of a group, and of their assignments.",
    ),
)


def security_options(command: C) -> C:
    """Add the options of security, of which the command gets `security` as a dict."""
    return _collected(command, _SECURITY, "security")  # type: ignore[no-any-return]


def limit_options(command: C) -> C:
    """Add the limits of connections and groups: `limits` and `group_limits`."""
    return _collected(_collected(command, _GROUP_LIMITS, "group_limits"), _LIMITS, "limits")  # type: ignore[no-any-return]


def _collected(command: Any, options: tuple[Callable[[Any], Any], ...], name: str) -> Any:
    """Add options, and pass those that are given to the command as one dict."""
    names: set[str] = set()

    @functools.wraps(command)
    def collecting(*arguments: Any, **values: Any) -> object:
        given = {key: values.pop(key) for key in names}
        return command(*arguments, **values, **{name: {key: each for key, each in given.items() if each is not None}})

    for option in reversed(options):
        collecting = option(collecting)
    names.update(each.name for each in getattr(collecting, "__click_params__", ())[-len(options) :])
    return collecting


def _names(text: str, separator: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(separator) if (name := each.strip()))
