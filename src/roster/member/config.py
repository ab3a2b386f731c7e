"""Options of a member and their validation."""

import re
from dataclasses import dataclass
from typing import Annotated

from roster._errors import RosterError
from roster.assignors import Assignor, resolve_assignors
from roster.member.options import DEFAULT_ASSIGNORS, MemberSettings
from roster.member.types import Selection
from roster.model.offsets import AUTO_OFFSET_RESETS, is_auto_offset_reset
from roster.model.options import Option, declared
from roster.model.topics import NAME_RULE, is_legal_name

MAX_OFFSETS_WAIT_MS = 10_000

_SECOND_MS = 1_000


class ConfigError(RosterError, ValueError):
    """An option has an invalid value; `option` is its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, kw_only=True)
class MemberConfig(MemberSettings):
    """The options of a member; times in ms. Raises ConfigError naming the option.

    assignors: those this member supports, preferred first, by name or as an Assignor.
    """

    group: str
    selection: Selection
    assignors: tuple[str | Assignor, ...] = DEFAULT_ASSIGNORS
    retry_backoff_ms: Annotated[int, Option(help="pause before a request is repeated", unit="ms", least=1)] = 100
    retry_backoff_max_ms: Annotated[
        int, Option(help="longest pause before a request is repeated", unit="ms", least=1)
    ] = 1_000

    def __post_init__(self) -> None:
        if not self.group:
            raise ConfigError("group", "must not be empty: give the name the group's members share")
        check_selection(self.selection)
        try:
            resolve_assignors(self.assignors)
        except ValueError as error:
            raise ConfigError("assignors", str(error)) from None
        for name, option in declared(MemberConfig).items():
            if problem := option.problem(getattr(self, name)):
                raise ConfigError(name, problem)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            if self.session_timeout_ms < _SECOND_MS:
                few = f"{self.session_timeout_ms} milliseconds are less than the heartbeat interval: 45 s are 45000"
                raise ConfigError("session_timeout_ms", few)
            raise ConfigError(
                "heartbeat_interval_ms",
                f"must be less than session_timeout_ms ({self.session_timeout_ms}), usually a third of it or less,"
                f" not {self.heartbeat_interval_ms}",
            )
        if not is_auto_offset_reset(self.auto_offset_reset):
            raise ConfigError("auto_offset_reset", f"must be {AUTO_OFFSET_RESETS}, not {self.auto_offset_reset!r}")
        if self.group_instance_id is not None:
            _check_instance_id(self.group_instance_id)

    @property
    def assignors_by_name(self) -> dict[str, Assignor]:
        """The assignors by protocol name, preferred first."""
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
        """Timeout of a leader's fetch of offsets, after which it assigns without lags."""
        return min(self.request_timeout_ms, self.rebalance_timeout_ms // 4, MAX_OFFSETS_WAIT_MS)

    @property
    def revocation_ms(self) -> int:
        """Time to finish work on revoked partitions: the rebalance timeout minus two heartbeat intervals.

        The member learns of the rebalance within the first interval; the second is for its JoinGroup.
        """
        return max(self.rebalance_timeout_ms - 2 * self.heartbeat_interval_ms, self.rebalance_timeout_ms // 2)


def check_selection(selection: Selection) -> None:
    """Raise ConfigError for an empty selection or an invalid topic name."""
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
