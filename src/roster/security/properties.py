"""Java's properties format, as `java.util.Properties.load` reads it: comments, escapes, continued lines, separators.

`read_jaas` reads `sasl.jaas.config`, as Java's clients do: a login module, a control flag, options, a semicolon.
"""

import re
from collections.abc import Iterator

from roster.security.errors import SettingError

_SPACE = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"(?:[^\\:=\s]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[:=]?[ \t\f]*")
_CUT_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9A-Fa-f]{4})")


def read_properties(text: str) -> dict[str, str]:
    """Return the properties in their order; of a key that comes twice, the last value, as in Java.

    Raises SettingError, whose `key` is the line, if an escape of a character by its number is cut short.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        if _CUT_UNICODE.search(line):
            raise SettingError(
                f"line {number}", "an escape \\u without four hexadecimal digits", "write \\\\ for one \\"
            )
        key = _KEY.match(line)
        assert key is not None  # it matches the empty string
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None  # as above
        properties[_unescaped(key[0])] = _unescaped(line[separator.end() :])
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each logical line, without comments, blank lines and leading space."""
    logical, begun = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_SPACE)
        if not logical:
            if not line or line[0] in "#!":
                continue
            begun = number
        body = line.rstrip("\\")
        goes_on = (len(line) - len(body)) % 2 == 1
        logical += line[:-1] if goes_on else line
        if logical and not goes_on:
            yield begun, logical
            logical = ""
    if logical:
        yield begun, logical


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    named = escape[1]
    return chr(int(named[1:], 16)) if len(named) == 5 else _NAMED.get(named, named)


KEY = "sasl.jaas.config"
_VALUE = r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s;\"']+)"
_FORM = re.compile(
    rf"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>(?:\s+[^\s=;]+\s*=\s*{_VALUE})*)\s*;\s*", re.DOTALL
)
_OPTION = re.compile(rf"\s+([^\s=;]+)\s*=\s*({_VALUE})", re.DOTALL)
_MODULES = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
_FLAGS = {"required", "requisite", "sufficient", "optional"}
_EXAMPLE = 'write org.apache.kafka.common.security.scram.ScramLoginModule required username="…" password="…";'


def read_jaas(text: str, mechanism: str) -> tuple[str, str]:
    """Return user name and password. The message of the SettingError that it may raise holds neither."""
    form = _FORM.fullmatch(text)
    if form is None or form["flag"].lower() not in _FLAGS:
        raise SettingError(KEY, 'is not MODULE required OPTION="…" …;', _EXAMPLE)
    module = form["module"].rpartition(".")[2]
    mechanisms = _MODULES.get(module)
    if mechanisms is None:
        raise SettingError(
            KEY,
            f"{module} is not a login module that Roster knows",
            "use PlainLoginModule or ScramLoginModule, or sasl.oauthbearer.token.function for OAUTHBEARER",
        )
    if mechanism not in mechanisms:
        raise SettingError(
            KEY,
            f"{module} does not go with sasl.mechanism={mechanism}",
            f"set sasl.mechanism={' or '.join(mechanisms)}",
        )
    options = {name: _plain(value) for name, value in _OPTION.findall(form["options"])}
    if "tokenauth" in options:
        raise SettingError(KEY, "delegation tokens (tokenauth) are not supported", "log in with user name and password")
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise SettingError(KEY, f"has no {missing[0]}", _EXAMPLE)
    return options["username"], options["password"]


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL) if value[0] in "\"'" else value
