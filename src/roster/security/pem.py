"""PEM files: read once, checked for what they should hold, stores of Java refused with the way to convert them."""

from __future__ import annotations

import re
from pathlib import Path

from roster.security.errors import SettingError

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_JKS, _DER = b"\xfe\xed\xfe\xed", b"\x30"
_MOST_BYTES = 16 << 20


def read_pem(key: str, path: str, *, to_convert: str = "") -> str:
    """Return the text of the PEM file at `path`, the value of the setting `key`.

    `to_convert` is the command that makes PEM of a store; without it a general one is named. Raises SettingError if the
    file cannot be read or is not PEM.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(
            key, f"{path} cannot be read ({reason})", "name a PEM file that this user may read"
        ) from None
    if data.startswith(_JKS):
        first = f"keytool -importkeystore -srckeystore {file.name} -destkeystore store.p12 -deststoretype PKCS12"
        raise SettingError(
            key, f"{path} is a Java keystore (JKS)", f"convert it: {first}; {_from_pkcs12('store.p12', to_convert)}"
        )
    if data.startswith(_DER):
        raise SettingError(
            key, f"{path} is binary (PKCS12 or DER)", f"convert it: {_from_pkcs12(file.name, to_convert)}"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(key, f"{path} is not a PEM file", "name a file with -----BEGIN CERTIFICATE-----") from None


def _from_pkcs12(name: str, options: str) -> str:
    return f"openssl pkcs12 -in {name} {options} -out store.pem".replace("  ", " ")


def certificates(key: str, text: str) -> str:
    """Return the certificates in PEM text. Raises SettingError if it has none."""
    blocks = [block[0] for block in _BLOCK.finditer(text) if block[1].endswith("CERTIFICATE")]
    if not blocks:
        raise SettingError(key, "it contains no certificate", "it must have -----BEGIN CERTIFICATE----- in it")
    return "\n".join(blocks) + "\n"


def private_key(key: str, text: str) -> str:
    """Return the private key in PEM text. Raises SettingError unless there is exactly one."""
    blocks = [block[0] for block in _BLOCK.finditer(text) if block[1].endswith("PRIVATE KEY")]
    if len(blocks) != 1:
        problem = "it contains no private key" if not blocks else f"it contains {len(blocks)} private keys"
        raise SettingError(key, problem, "it must have one block -----BEGIN … PRIVATE KEY-----")
    return blocks[0] + "\n"


def is_encrypted(private: str) -> bool:
    """Return True if a private key in PEM needs a password."""
    return "BEGIN ENCRYPTED PRIVATE KEY" in private or "Proc-Type: 4,ENCRYPTED" in private
