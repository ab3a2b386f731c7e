"""Principals: `User:NAME`, from a login or from the subject of a client's certificate."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roster.broker.errors import BrokerStartError

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
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_GROUP = re.compile(r"\$(\d)")


def user(name: str) -> str:
    """Return the principal of a user."""
    return f"User:{name}"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None for DEFAULT: the name as it is."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        replaced = self.pattern.sub(self.replacement, name, count=1)
        return replaced.lower() if self.case == "L" else replaced.upper() if self.case == "U" else replaced


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """`ssl.principal.mapping.rules` (KIP-371): the first rule that matches a distinguished name gives the user."""

    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, text: str) -> "PrincipalRules":
        """Read rules with commas between them: DEFAULT, or RULE:pattern/replacement/ with L or U behind it.

        Raises:
            BrokerStartError: a rule is malformed.
        """
        rules, position = [], 0
        text = text.strip() or "DEFAULT"
        while position < len(text):
            rule = _RULE.match(text, position)
            if rule is not None:
                rules.append(_rule(rule))
                position = rule.end()
            elif text.startswith("DEFAULT", position):
                rules.append(_Rule(None))
                position += len("DEFAULT")
            else:
                raise _malformed(text[position:])
            rest = text[position:].lstrip()
            if rest and not rest.startswith(","):
                raise _malformed(rest)
            position = len(text) - len(rest.removeprefix(",").lstrip())
        return cls(tuple(rules))

    def principal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return the principal of a certificate, as `ssl.SSLSocket.getpeercert` shows it; ANONYMOUS without one."""
        if not certificate:
            return ANONYMOUS
        name = distinguished_name(certificate.get("subject", ()))
        return next(
            (user(name_in_rule) for rule in self.rules if (name_in_rule := rule.apply(name)) is not None), ANONYMOUS
        )


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


def _rule(match: re.Match[str]) -> _Rule:
    try:
        pattern = re.compile(match[1])
        replacement = _GROUP.sub(r"\\g<\1>", match[2])
        pattern.sub(replacement, "")
    except (re.error, IndexError) as error:
        raise _malformed(match[0]) from error
    return _Rule(pattern, replacement, match[3])


def _malformed(rest: str) -> BrokerStartError:
    return BrokerStartError(
        f"--ssl-principal-mapping-rules: {rest!r} is not a rule; write DEFAULT or RULE:pattern/replacement/, with"
        " commas between several"
    )
