"""Looks at a group through `roster.client`, single ones or regular ones on a thread; read-only."""

import threading
import time
from collections.abc import Callable, Collection, Mapping

from roster.client import (
    Admin,
    ClientError,
    GroupDescription,
    MemberDescription,
    RequestTimeoutError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from roster.client.group_lag import group_positions, position_of
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.model import GroupPosition, TopicPartition
from roster.security import PLAINTEXT, Security
from roster.wire import WireError
from roster.wire.consumer import CLASSIC, PROTOCOL_TYPE
from roster.wire.consumer.messages import decode_subscription

NO_CLAIM = -1
AWAY = (UnreachableError, RequestTimeoutError)
"""Errors after which the next look may succeed."""


def snapshot_of(
    description: GroupDescription | None, positions: Mapping[TopicPartition, GroupPosition], trouble: str = ""
) -> Snapshot:
    """Make a snapshot of a group; `description` is None if it does not exist. `at` is time.monotonic()."""
    now = time.monotonic()
    if description is None:
        return Snapshot(now, positions=positions, trouble=trouble)
    members = tuple(_member(member, description) for member in description.members)
    return Snapshot(
        now,
        description.state,
        description.protocol,
        description.coordinator,
        members,
        positions,
        trouble,
        description.epoch,
    )


def take_snapshot(admin: Admin, group: str, also: Collection[TopicPartition] = ()) -> Snapshot:
    """Look at a group: its members, what each owns, and the positions of every partition owned, committed or in `also`.

    Offsets are read before the ends of the logs: records that come in between make the lag look larger, never zero
    too early. `at` is time.monotonic().

    Raises:
        UnreachableError: no broker, or no coordinator, answered.
        RequestTimeoutError: the coordinator did not answer in time.
        ClientError: the cluster refused.
    """
    try:
        description = admin.describe_group(group)
    except UnknownGroupError:
        description = None
    owned = {tp for member in (description.members if description else ()) for tp in member.assignment}
    return snapshot_of(description, *_positions(admin, group, owned | set(also)))


def _member(member: MemberDescription, group: GroupDescription) -> MemberSeen:
    claim = NO_CLAIM
    if group.group_type == CLASSIC and group.protocol_type == PROTOCOL_TYPE and member.metadata:
        try:
            claim = decode_subscription(member.metadata).generation_id
        except WireError:
            claim = NO_CLAIM
    return MemberSeen(
        member.member_id,
        member.client_id,
        member.host.removeprefix("/"),
        member.instance_id,
        frozenset(member.assignment),
        claim,
    )


def _positions(
    admin: Admin, group: str, assigned: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, GroupPosition], str]:
    """Return positions, and the reason if log end offsets are missing."""
    try:
        return group_positions(admin, group, assigned), ""
    except (*AWAY, UnknownTopicError) as error:
        committed = admin.group_offsets(group, stable=False)
        return {tp: position_of(committed.get(tp), None, None) for tp in sorted({*assigned, *committed})}, str(error)


class Looker:
    """Looks at a group at regular intervals while it is entered, on its own thread.

    Args:
        bootstrap: where to connect.
        group: the group to look at.
        report: called on the thread with each Snapshot or Away, and with the ClientError that ends the thread.
        every_s: seconds between the starts of two looks.
        timeout_s: seconds a broker has for an answer.
        also: partitions whose positions are wanted in any case.
        security: TLS and SASL.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        report: Callable[[Snapshot | Away | ClientError], object],
        *,
        every_s: float,
        timeout_s: float,
        also: Collection[TopicPartition] = (),
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap, self._security, self._group, self._report = bootstrap, security, group, report
        self._every_s, self._timeout_s, self._also = every_s, timeout_s, tuple(also)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looker", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(min(1.0, 2 * self._timeout_s))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look_on()
            except AWAY as error:
                self._report(Away(time.monotonic(), str(error)))
                self._stop.wait(self._every_s)
            except ClientError as error:
                self._report(error)
                return

    def _look_on(self) -> None:
        """Look through one connection until it fails."""
        timeout_ms = round(self._timeout_s * 1000)
        with Admin(
            self._bootstrap, client_id="roster-watch", request_timeout_ms=timeout_ms, security=self._security
        ) as admin:
            while not self._stop.is_set():
                started = time.monotonic()
                self._report(take_snapshot(admin, self._group, self._also))
                self._stop.wait(max(0.0, started + self._every_s - time.monotonic()))
