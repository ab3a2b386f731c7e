"""`sasl.jaas.config`, as Java's clients read it: a login module, a control flag, options, a semicolon."""

from __future__ import annotations

import re

from roster.security.errors import SettingError

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
