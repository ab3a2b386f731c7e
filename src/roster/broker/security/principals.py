"""Principals: `User:NAME`, from a login or from the subject of a client's certificate."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

ANONYMOUS = "User:ANONYMOUS"
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Names that RFC 2253 abbreviates."""
_SPECIAL = re.compile(r'([,+"\\<>;=])')


def user(name: str) -> str:
    """Return the principal of a user."""
    return f"User:{name}"


def certificate_principal(certificate: Mapping[str, Any] | None) -> str:
    """Return the principal of a certificate, as `ssl.SSLSocket.getpeercert` shows it; ANONYMOUS without one."""
    return user(distinguished_name(certificate.get("subject", ()))) if certificate else ANONYMOUS


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a subject as RFC 2253 writes it: the last part first."""
    parts = [
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in reversed([*subject])
    ]
    return ",".join(parts)


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text
