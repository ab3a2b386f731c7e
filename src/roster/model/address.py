"""Broker addresses: `host:port`, `[v6]:port`, and lists of them as in Kafka's `bootstrap.servers`."""

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

from roster._errors import RosterError

EXAMPLE = "127.0.0.1:9092"
MOST_PORT = 65_535

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
_HOST = re.compile(r"[^\s\x00-\x1f\x7f/\\@?#\[\]:,]+")
_PORT = re.compile(r"0*([0-9]{1,5})", re.ASCII)


class Address(NamedTuple):
    """A host (IPv6 without brackets) and a TCP port; `str` returns text that can be parsed again."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressError(RosterError, ValueError):
    """An invalid address; `problem` quotes it, `fix` says what to write instead."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


def parse_address(text: str, *, default_port: int | None = None, listening: bool = False) -> Address:
    """Parse one address. Without `default_port` it must have a port; port 0 (any free one) only if `listening`.

    Raises AddressError, also for a protocol in front, as in PLAINTEXT://host:9092: `bootstrap.servers` has none.
    """
    problem = f"{text!r} is not host:port"
    if not isinstance(text, str):
        raise AddressError(problem, f"give text, as in {EXAMPLE!r}")
    text = text.strip()
    if scheme := _SCHEME.match(text):
        raise AddressError(problem, f"leave out {scheme[0]}")
    host, port = _split(text)
    bracketed = host.startswith("[") and host.endswith("]")
    if text.isdigit() or not (_is_v6(host[1:-1]) if bracketed else _HOST.fullmatch(host)):
        raise AddressError(problem, _fix_of_host(text, host))
    host = host.strip("[]")
    if port is None:
        if default_port is None:
            raise AddressError(problem, f"add the port, as in {Address(host, 9092)}")
        return Address(host, default_port)
    number = _PORT.fullmatch(port)
    least = 0 if listening else 1
    if number is None or not least <= int(number[1]) <= MOST_PORT:
        raise AddressError(problem, f"the port must be a number from {least} to {MOST_PORT}")
    return Address(host, int(number[1]))


def parse_addresses(given: str | Iterable[str], *, default_port: int | None = None) -> list[Address]:
    """Parse addresses from one or several texts; each may have several, separated by commas. Empty ones are skipped.

    Raises AddressError, also for a text without an address.
    """
    texts = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise AddressError(f"{text!r} is not host:port", f"give text, as in {EXAMPLE!r}")
    every = [address for text in texts for address in text.split(",") if address.strip()]
    if not every:
        raise AddressError("no address given", f"give host and port, as in {EXAMPLE}")
    return [parse_address(address.strip(), default_port=default_port) for address in every]


def _split(text: str) -> tuple[str, str | None]:
    """Split into the host, with its brackets, and the port, None if absent."""
    if text.endswith("]"):
        return text, None
    host, colon, port = text.rpartition(":")
    return (host, port) if colon else (text, None)


def _is_v6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True


def _fix_of_host(text: str, host: str) -> str:
    if _is_v6(text) or _is_v6(host):
        return "put an IPv6 address in brackets, as in [::1]:9092"
    return f"give host and port, as in {EXAMPLE}"
