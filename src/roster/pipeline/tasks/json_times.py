"""Dates and times in text, as Spark's `from_json` reads them without a format.

Source: Spark 4.3, SparkDateTimeUtils, and `java.time.ZoneId.of`; cleared by tests against Spark itself.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

_SPACE = "".join(map(chr, (*range(33), 127)))
_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d\d?)(?:-(\d\d?)(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = r"[ T](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d*))?([^\d.].*)?)?)?"
_TIME = re.compile(rf"([+-]?)(\d{{4,6}})(?:-(\d\d?)(?:-(\d\d?)(?:{_CLOCK})?)?)?", re.ASCII | re.DOTALL)
_OFFSET = re.compile(r"([+-])(?:(\d)|(\d\d)(?:(:?)(\d\d)(?:\4(\d\d))?)?)", re.ASCII)
_ONE_HOUR, _ONE_MINUTE = re.compile(r"([+-])(\d):", re.ASCII), re.compile(r"([+-]\d\d):(\d)$", re.ASCII)
_NAMES = """
    ACT Australia/Darwin AET Australia/Sydney AGT America/Argentina/Buenos_Aires ART Africa/Cairo AST
    America/Anchorage BET America/Sao_Paulo BST Asia/Dhaka CAT Africa/Harare CNT America/St_Johns CST
    America/Chicago CTT Asia/Shanghai EAT Africa/Addis_Ababa ECT Europe/Paris EST -05:00 HST -10:00 IET
    America/Indiana/Indianapolis IST Asia/Kolkata JST Asia/Tokyo MIT Pacific/Apia MST -07:00 NET Asia/Yerevan NST
    Pacific/Auckland PLT Asia/Karachi PNT America/Phoenix PRT America/Puerto_Rico PST America/Los_Angeles SST
    Pacific/Guadalcanal VST Asia/Ho_Chi_Minh
""".split()  # noqa: SIM905 - a table
_SHORT = dict(zip(_NAMES[::2], _NAMES[1::2], strict=True))
"""`java.time.ZoneId.SHORT_IDS`."""
_ERA_YEARS, _ERA_DAYS = 400, 146_097
_FIRST_GREGORIAN = -141_427


def days_of(text: str) -> int:
    """Return the days since 1970 of a date. Raises ValueError, OverflowError."""
    fitting = _DATE.fullmatch(text.strip(_SPACE)) or _DATE.fullmatch(text.replace("GMT", "").strip(_SPACE))
    if fitting is not None:
        return _days(*fitting.groups())[0]
    if not re.fullmatch(r"[+-]?\d+", text) or int(text) < _FIRST_GREGORIAN:
        raise ValueError("it is not a date")
    return int(text)  # as Spark 1.5 wrote dates


def micros_of(text: str, *, in_utc: bool) -> int:
    """Return the microseconds since 1970 of a time. Raises ValueError, OverflowError.

    in_utc: the text may name a zone, and is in UTC without one; else it names none.
    """
    fitting = _TIME.fullmatch(text.strip(_SPACE))
    if in_utc:
        try:
            return _micros(fitting)
        except (ValueError, OverflowError):
            return _micros(_TIME.fullmatch(text.replace("GMT", "").strip(_SPACE)))
    if fitting is not None and fitting[9] is not None:
        raise ValueError("it names a zone")
    return _micros(fitting)


def _micros(fitting: re.Match[str] | None) -> int:
    if fitting is None:
        raise ValueError("it is not a time")
    *day, hour, minute, second, fraction, zone = fitting.groups()
    days, near = _days(*day)
    clock = datetime.combine(near, datetime.min.time()).replace(
        hour=int(hour or 0),
        minute=int(minute or 0),
        second=int(second or 0),
        microsecond=int(f"{fraction or '':0<6}"[:6]),
    )
    offset = timedelta() if zone is None else clock.replace(tzinfo=_zone(zone.strip(_SPACE[:33]))).utcoffset()
    of_day = clock - datetime.combine(near, datetime.min.time()) - (offset or timedelta())
    return days * 86_400_000_000 + of_day // timedelta(microseconds=1)


def _days(sign: str, year: str, month: str | None, day: str | None) -> tuple[int, date]:
    """Return the days since 1970, and a day of the years that Python has with the same calendar and rules of zones."""
    eras, in_era = divmod(int(sign + year), _ERA_YEARS)
    era = min(max(eras, 1), 7)
    near = date(era * _ERA_YEARS + in_era, int(month or 1), int(day or 1))
    return near.toordinal() - date(1970, 1, 1).toordinal() + (eras - era) * _ERA_DAYS, near


@lru_cache(1024)
def _zone(name: str) -> tzinfo:
    """Return a zone by its name in Java. Raises ValueError."""
    name = _ONE_MINUTE.sub(r"\g<1>:0\2", _ONE_HOUR.sub(r"\g<1>0\2:", name, count=1))
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    for prefix in ("UTC", "GMT", "UT", ""):
        if name.startswith((f"{prefix}+", f"{prefix}-")):
            return _offset(name[len(prefix) :])
    if name not in _zones():
        raise ValueError("the zone does not exist")
    return ZoneInfo(name)


def _offset(text: str) -> tzinfo:
    fitting = _OFFSET.fullmatch(text)
    if fitting is None:
        raise ValueError("it has no offset")
    sign, *parts = fitting.group(1, 2, 3, 5, 6)
    digit, hours, minutes, seconds = (int(part or 0) for part in parts)
    offset = timedelta(hours=digit + hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > timedelta(hours=18):
        raise ValueError("its offset is more than 18 hours, or none")
    return timezone(-offset if sign == "-" else offset)


@lru_cache(1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - {"Factory", "ROC", "localtime"}
