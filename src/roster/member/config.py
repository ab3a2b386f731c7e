"""Options of a member and their validation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roster._errors import RosterError
from roster.assignors import Assignor, resolve_assignors
from roster.member.options import DEFAULT_ASSIGNORS, GROUP_OPTIONS
from roster.member.types import Selection
from roster.model.offsets import AUTO_OFFSET_RESETS, AutoOffsetReset, is_auto_offset_reset
from roster.model.options import Option
from roster.model.topics import NAME_RULE, is_legal_name

MAX_OFFSETS_WAIT_MS = 10_000


_SECOND_MS = 1_000
_TIMES = tuple(option for option in GROUP_OPTIONS.values() if option.unit == "ms")
_BACKOFFS = (
    Option("retry_backoff_ms", "int", "pause before a request is repeated", 100, unit="ms", least=1),
    Option("retry_backoff_max_ms", "int", "longest pause before a request is repeated", 1_000, unit="ms", least=1),
)


class ConfigError(RosterError, ValueError):
    """An option has an invalid value; `option` is its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """The options of a member; times in ms. Raises ConfigError naming the option.

    assignors: those this member can work with, most wanted first, by name, or as an Assignor where one has options.
    For assignors that look at lag: capacity is how many plain members this one counts for; auto_offset_reset says where
    the group starts reading without a committed offset, so what lag it then has.
    """

    group: str
    selection: Selection
    assignors: tuple[str | Assignor, ...] = DEFAULT_ASSIGNORS
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 1_000
    rebalance_timeout_ms: int = 300_000
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    group_instance_id: str | None = None
    rack_id: str | None = None
    capacity: int = 1
    auto_offset_reset: str = AutoOffsetReset.LATEST

    def __post_init__(self) -> None:
        if not self.group:
            raise ConfigError("group", "must not be empty: give the name the group's members share")
        check_selection(self.selection)
        try:
            resolve_assignors(self.assignors)
        except ValueError as error:
            raise ConfigError("assignors", str(error)) from None
        for option in (*_TIMES, *_BACKOFFS):
            if not option.accepts(value := getattr(self, option.name)):
                raise ConfigError(
                    option.name, f"must be a whole number of milliseconds from 1 to 2^31 - 1, not {value!r}"
                )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            if self.session_timeout_ms < _SECOND_MS:
                few = f"{self.session_timeout_ms} milliseconds are less than the heartbeat interval: 45 s are 45000"
                raise ConfigError("session_timeout_ms", few)
            raise ConfigError(
                "heartbeat_interval_ms",
                f"must be less than session_timeout_ms ({self.session_timeout_ms}), usually a third of it or less,"
                f" not {self.heartbeat_interval_ms}",
            )
        if not GROUP_OPTIONS["capacity"].accepts(self.capacity):
            raise ConfigError("capacity", f"must be a whole number from 1 up, not {self.capacity!r}")
        if not is_auto_offset_reset(self.auto_offset_reset):
            raise ConfigError("auto_offset_reset", f"must be {AUTO_OFFSET_RESETS}, not {self.auto_offset_reset!r}")
        if self.group_instance_id is not None:
            _check_instance_id(self.group_instance_id)

    @property
    def assignors_by_name(self) -> dict[str, Assignor]:
        """The assignors by protocol name, most preferred first."""
        return resolve_assignors(self.assignors)

    @property
    def join_timeout_ms(self) -> int:
        """Timeout of JoinGroup and SyncGroup: a whole rebalance and 5 s for the network."""
        return max(self.request_timeout_ms, self.rebalance_timeout_ms + 5_000)

    @property
    def heartbeat_timeout_ms(self) -> int:
        """Timeout of Heartbeat: short enough to find another coordinator within the session."""
        return min(self.request_timeout_ms, max(self.heartbeat_interval_ms, self.session_timeout_ms // 3))

    @property
    def offsets_timeout_ms(self) -> int:
        """Timeout of a leader's offset look-up, after which it assigns without lags."""
        return min(self.request_timeout_ms, self.rebalance_timeout_ms // 4, MAX_OFFSETS_WAIT_MS)

    @property
    def revocation_ms(self) -> int:
        """Time to finish revoked work: the rebalance timeout less two heartbeat intervals for notice and join."""
        return max(self.rebalance_timeout_ms - 2 * self.heartbeat_interval_ms, self.rebalance_timeout_ms // 2)


def check_selection(selection: Selection) -> None:
    """Refuse an empty selection and names no topic can have."""
    if isinstance(selection, re.Pattern):
        return
    if not selection:
        raise ConfigError("topics", "must name at least one topic, or be a compiled pattern")
    for topic in sorted(selection):
        if not is_legal_name(topic):
            raise ConfigError(
                "topics",
                f"{topic!r} is not a topic name ({NAME_RULE}); for a pattern give a compiled regular expression",
            )


def _check_instance_id(instance_id: str) -> None:
    if not is_legal_name(instance_id):
        raise ConfigError("group_instance_id", f"{instance_id!r} must be {NAME_RULE}")
