"""Random texts of JSON, from a grammar with a place for all that writers and other readers do."""

# ruff: noqa: SIM905, RUF001 - texts with blanks between them; digits of other scripts

from __future__ import annotations

import json
import random
from collections.abc import Callable

YEARS = "2020 1999 0001 0000 9999 1582 1969 1900 10000 294247 294248 999999 123 20 +2020 -0044 -2020 +12020".split()
ZONES = """
    Z z UTC GMT UT UTC+1 GMT+01:00 UT-5 EST PST CST MST HST IST BST Europe/Paris europe/paris America/New_York
    Asia/Kolkata Etc/GMT+5 Zulu GMT0 ROC ROK Factory US/Pacific +1 +01 +0100 +01:00 -05:30 +5:30 +18:00
    +18:01 -18:00 +19 +05:3 +05:5 +010203 +01:02:03 +01:60 +1:2 -00:00 UTC+19 GMTX Foo A Africa/Monrovia
    Australia/Lord_Howe posix/UTC [Europe/Paris] Z[UTC] CEST EDT UTC+1:00 localtime
""".split()
NO_TIMES = """
    now today 20200101 20200101T101010Z 2020-W01-1 5 -5 18000 +7 ١ ２０２０-01-01 2020/01/01 01/02/2020 - + 2020-
    2020--01 --2020-01-01 2020-01-01-01 GMT2020-01-01 1577836800 1577836800.5 2020-01-01T25:00:00 10:00 T10:00:00Z
""".split()
NO_TIMES += ["", "2020-01-01 10GMT:00:00", "2020-01-01 10:00:00 PM", "Wed Jan 01", "2020-01-01T10:00:00 GMT+02:00"]
NO_DECIMALS = """
    1,234.5 $1 1e1000000000 1e99999999999 , 1,,2 0x10 Infinity NaN . -.5 1. 1d 1f (5) 5% ٣٤ 99999999.994 99999999.995
    -99999999.995 0e0 00012
""".split()
NO_DECIMALS += ["", "  ", "1" * 1001]
NUMBERS = """
    1e3 1E-5 -0.0 1e400 -1e400 1e-400 NaN Infinity -Infinity +Infinity -INF +INF INF +1 01 .5 1. 1e - --1 1x 0x1 1_0
    nan null true false True 127 -128 -129 32768 65535 2147483648 9223372036854775807 9223372036854775808
    -9223372036854775808 1.0 16777217 0.1 3.4028236e38 1e39 1e-46 123456789.125 0.001 0.0009 1e7 9999999.5 12345678.9
    200
""".split()
CHARACTERS = [*"aé'{},\u2028😀\t\x01"]
CHARACTERS += r"\n \u0041 \u00e9 \ud83d\ude00 \ud800 \' \" \/ \x \u0000 \u001f \u12 \b".split()
FRAMES = (
    '{"v":%s}',
    '{"v":%s}',
    "{'v':%s}",
    '{ "v" : %s }',
    '{"w":[1],"v":%s}',
    '{"v":1,"v":%s}',
    '{"v":%s,"v":null}',
    '{"v":%s,"z":{"q":[{}]}}',
    '{"V":%s}',
    '[{"v":%s}]',
    '{"v":%s',
)
BEHIND = ["", "", "", "", " ", "\n", '{"v":2}', "]", "}", " x", '\n{"v":3}', ",", "'", "\u00a0", "//c"]


class Texts:
    """Makes the texts of one seed."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        self.one_of = self.chance.choice

    def of(self, kind: str) -> str:
        """A record with a field `v` that is mostly of a type of Spark."""
        made: dict[str, Callable[[], str]] = {
            "timestamp": lambda: self.quoted(self.blanks(self.time())),
            "timestamp_ntz": lambda: self.quoted(self.blanks(self.time())),
            "date": lambda: self.quoted(self.blanks(self.time())),
            "decimal(10,2)": lambda: self.quoted(self.blanks(self.decimal())),
            "struct<p: bigint, q: string>": lambda: self.value(1, "pqr", "{"),
            "array<bigint>": lambda: self.value(1, "pq", "["),
            "array<struct<p: bigint>>": lambda: self.value(1, "pq", "["),
        }
        value = made.get(kind, self.number if self.chance.random() < 0.5 else self.value)()
        if self.chance.random() < 0.1:
            value = self.one_of([self.number, self.value])()
        return self.space() + self.one_of(FRAMES) % value + self.one_of(BEHIND)

    def digits(self, least: int, most: int) -> str:
        return "".join(self.one_of("0123456789") for _ in range(self.chance.randint(least, most)))

    def quoted(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self.chance.random() < 0.3)

    def space(self) -> str:
        return self.one_of(["", "", "", "", "", "", " ", "\n", "\t", "\r"])

    def blanks(self, text: str) -> str:
        if self.chance.random() < 0.15:
            text = self.one_of([" ", "\t", "\n", "\u00a0", "\u2003", "\0", "\x7f", "\x1f"]) + text
        return text + self.one_of([" ", "\t", "\n", " x", "\u00a0", "GMT"]) if self.chance.random() < 0.15 else text

    def _part(self, most: int) -> str:
        return self.one_of(
            [f"{self.chance.randint(0, most + 1):0{self.chance.randint(1, 2)}}", self.digits(1, 2), "07"]
        )

    def time(self) -> str:
        if self.chance.random() < 0.15:
            return self.one_of(NO_TIMES)
        parts = [self.one_of([*YEARS, self.digits(3, 8), f"{self.chance.randint(1, 9999):04}"])]
        parts += [f"-{self._part(12)}", f"-{self._part(28)}", self.one_of("TTTTTTTT       tX") + self._part(23)]
        parts += [f":{self._part(59)}", f":{self._part(59)}", self.one_of("....,:") + self.digits(0, 9)]
        made = "".join(parts[: min(self.chance.randint(1, 12), 7 - self.chance.randint(0, 1))])
        return made + self.one_of(["", " ", "  "]) + self.one_of(ZONES) if self.chance.random() < 0.6 else made

    def decimal(self) -> str:
        if self.chance.random() < 0.1:
            return self.one_of(NO_DECIMALS)
        exponent = self.one_of(["", "", "", "e2", "E-3", "e+1", "e", "e99", "e-99"])
        made = (
            self.one_of(["", "", "+", "-"])
            + self.digits(0, 4)
            + self.one_of(["", ".", "."])
            + self.digits(0, 4)
            + exponent
        )
        if self.chance.random() < 0.3:
            place = self.chance.randint(0, len(made))
            made = made[:place] + self.one_of([",", ",", "_", " ", "'", "٣", "\u00a0", "NaN", "x", "-"]) + made[place:]
        return made

    def number(self) -> str:
        fraction = repr(self.chance.random() * 10 ** self.chance.randint(-10, 12))
        whole = self.one_of(["", "-"]) + (self.digits(1, 19).lstrip("0") or "1")
        return self.one_of([whole, f"{whole}.{self.digits(1, 4)}", self.one_of(NUMBERS), fraction])

    def text(self) -> str:
        quote = self.one_of('""\'')
        made = "".join(
            self.one_of(CHARACTERS if self.chance.random() < 0.6 else "xyz 1") for _ in range(self.chance.randint(0, 4))
        )
        return quote + (made.replace(quote, "").rstrip("\\") if self.chance.random() < 0.7 else made) + quote

    def value(self, depth: int = 0, names: str = "abpqv", kind: str = "") -> str:
        """Any value, or with `kind` an object or array."""
        kind = kind or self.one_of("nntt{[w" if depth < 4 else "nt")
        if kind in "nt":
            return self.number() if kind == "n" else self.text()
        if kind == "w":
            return self.one_of(["null", "true", "false", "nul"])
        values = [self.space() + self.value(depth + 1, names) for _ in range(self.chance.randint(0, 3))]
        if kind == "{":
            values = [self.one_of(['"%s"', '"%s"', "'%s'"]) % self.one_of(names) + f":{value}" for value in values]
        return kind + ",".join(values) + chr(ord(kind) + 2)
