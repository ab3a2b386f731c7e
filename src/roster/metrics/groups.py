"""One look at the groups of a cluster: what each is, its members and its positions; one bad group does not fail it."""

import logging
import re
from collections.abc import Collection
from typing import NamedTuple

from roster.client import Admin, ClientError, GroupDescription, GroupListing, UnknownGroupError
from roster.metrics.positions import GroupPositions, PositionReader
from roster.model import TopicPartition

log = logging.getLogger(__name__)

SHARE = "share"
_DESCRIBED = ("", "classic", "consumer")


class GroupState(NamedTuple):
    """Description of a group: its protocol as Kafka names it (classic, consumer, share, streams), state and members.

    members: None where they cannot be described.
    """

    kind: str
    state: str
    members: int | None


class GroupsSeen(NamedTuple):
    """The groups of one reading, by name; `positions` and `described` lack groups that could not be asked."""

    states: dict[str, GroupState]
    described: dict[str, GroupDescription]
    positions: dict[str, GroupPositions]


class GroupReader:
    """Reads groups. groups: a name, or the pattern that a whole name fits.

    owned: whether positions of partitions that members own are read too, besides those with a committed offset.
    """

    def __init__(
        self, admin: Admin, reader: PositionReader, groups: re.Pattern[str] | str, *, owned: bool = False
    ) -> None:
        self._admin, self._reader, self._groups, self._owned = admin, reader, groups, owned
        self._undescribed = 0

    @property
    def errors(self) -> int:
        """Failed lookups of single groups."""
        return self._undescribed + self._reader.errors.total()

    def is_wanted(self, group: str) -> bool:
        """Return True for a group that is looked at if it exists."""
        return group == self._groups if isinstance(self._groups, str) else self._groups.fullmatch(group) is not None

    def read(self, only: str | None = None) -> GroupsSeen:
        """Ask the cluster once, about one group if it is named. Raises ClientError if no broker answers."""
        named = only or (self._groups if isinstance(self._groups, str) else None)
        if named is None:
            listed = [listing for listing in self._admin.list_groups() if self.is_wanted(listing.group_id)]
        else:
            listed = [GroupListing(named, "", "")]
        groups = GroupsSeen({}, {}, {})
        for listing in listed:
            self._describe(listing, groups)
        # A share group has no committed offsets: its records are delivered one by one.
        read = [group for group, state in groups.states.items() if state.kind != SHARE]
        return groups._replace(positions=self._reader.read(read, also=self._owned_by(groups) if self._owned else None))

    def _describe(self, listing: GroupListing, groups: GroupsSeen) -> None:
        group = listing.group_id
        kind, state, members = listing.group_type or "classic", listing.state, None
        if listing.group_type in _DESCRIBED:
            try:
                described = groups.described[group] = self._admin.describe_group(group)
                kind, state, members = described.group_type, described.state, len(described.members)
            except UnknownGroupError:
                return
            except ClientError as error:
                log.warning("group %s cannot be described: %s", group, error)
                self._undescribed += 1
        groups.states[group] = GroupState(kind, state, members)

    @staticmethod
    def _owned_by(groups: GroupsSeen) -> dict[str, Collection[TopicPartition]]:
        return {
            group: {tp for member in described.members for tp in member.assignment}
            for group, described in groups.described.items()
        }
