"""JSON lines as records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from roster.cli import strict_json
from roster.cli.errors import UserError
from roster.cli.load.source import BATCH_ROWS, Checked, FileOptions, make_records, oversize
from roster.cli.load.unpack import unpacked


@dataclass
class JsonLinesSource(FileOptions):
    """One JSON object a line; values are sent as the bytes of their line."""

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        rows = bad = 0
        for number, line in self._lines():
            try:
                self._record(number, line)
                rows += 1
            except UserError:
                if not self.skip_bad:
                    raise
                bad += 1
        return Checked(rows, bad)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        keys: list[bytes | None] = []
        values: list[bytes] = []
        for number, line in self._lines():
            try:
                keys.append(self._record(number, line))
            except UserError:
                if not self.skip_bad:
                    raise
                continue
            values.append(line)
            if len(values) == BATCH_ROWS:
                yield make_records(keys, values)
                keys, values = [], []
        if values:
            yield make_records(keys, values)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with unpacked(self.path) as stream:
            for number, line in enumerate(stream, 1):
                stripped = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
                if stripped:
                    yield number, stripped

    def _record(self, number: int, line: bytes) -> bytes | None:
        """The key of the record that the line makes."""
        key = self._key(self._parse(number, line))
        size = len(line) + len(key or b"")
        if self.most is not None and size > self.most:
            raise UserError(oversize(f"{self.name} line {number}", size, self.most))
        return key

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        hint = "correct the line or pass --skip-bad-rows"
        try:
            value = strict_json.parse(line)
        except strict_json.InputError as error:
            raise UserError(f"FILE: {self.name} line {number}: {error}; {hint}") from error
        if not isinstance(value, dict):
            raise UserError(f"FILE: {self.name} line {number}: expected a JSON object, got {line[:40]!r}; {hint}")
        missing = [name for name in self.key if name not in value]
        if missing:
            raise UserError(
                f"--key: no field {', '.join(missing)} in {self.name} line {number}; it has {', '.join(value)}"
            )
        return value

    def _key(self, value: dict[str, Any]) -> bytes | None:
        if not self.key:
            return None
        texts = [_text(value[name]) for name in self.key]
        if len(texts) == 1:
            return None if texts[0] is None else texts[0].encode()
        return json.dumps(texts, ensure_ascii=False).encode()


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
