"""What a member asks any broker: who coordinates the group, and which topics there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member import matrix, requests
from roster.member.config import check_selection
from roster.member.ending import fail
from roster.member.events import Node
from roster.member.failures import fatal_answer
from roster.member.matrix import Action, error_code
from roster.member.membership import DISCOVER, METADATA
from roster.member.staying import heartbeat
from roster.member.transitions import State

if TYPE_CHECKING:
    from roster.member.events import Selection
    from roster.member.membership import Membership
    from roster.wire.messages import FindCoordinatorResponse, MetadataResponse


# The coordinator.


def find_coordinator(me: Membership) -> None:
    """Ask who it is, unless that is asked already or paused."""
    if me.out.paused(DISCOVER) or me.out.in_flight("find"):
        return
    me.send("find", requests.find_coordinator(me.config))


def coordinator_found(me: Membership, response: FindCoordinatorResponse) -> None:
    """The broker knows the coordinator, or not yet."""
    if not response.coordinators:
        me.pause(DISCOVER, "the broker named no coordinator")
        return
    found = response.coordinators[0]
    code = error_code(found.error_code)
    match matrix.FIND_COORDINATOR.get(code, Action.FATAL):
        case Action.ACCEPT:
            me.tries[DISCOVER] = 0
            me.coordinator = Node(found.node_id, found.host, found.port)
            me.report("coordinator", f"the group's coordinator is broker {found.node_id} at {me.coordinator}")
            if me.beating():
                heartbeat(me)
        case Action.BACK_OFF:
            me.pause(DISCOVER, f"{code.name}: {found.error_message or 'no coordinator yet'}")
        case _:
            fail(me, fatal_answer("FindCoordinator", code, me.config))


# Topics.


def select(me: Membership, selection: Selection) -> None:
    """The application wants other topics. Raises ConfigError."""
    check_selection(selection)
    me.watch.select(selection)
    if me.watch.topics is None:
        refresh_topics(me)
    check_topics(me)


def refresh_topics(me: Membership) -> None:
    """Ask for metadata, unless that is asked for already or paused."""
    if me.out.paused(METADATA) or me.out.in_flight("metadata"):
        return
    me.send("metadata", me.watch.request())


def topics_refreshed(me: Membership, response: MetadataResponse) -> None:
    """Take in newer metadata; then whoever waited for it may go on."""
    me.tries[METADATA] = 0
    me.watch.update(response)
    schedule_refresh(me)


def schedule_refresh(me: Membership) -> None:
    """Ask again when the metadata is old, if it can change anything."""
    if me.watch.needed:
        me.out.set(METADATA, me.out.now + me.config.metadata_max_age_ms)


def check_topics(me: Membership) -> None:
    """Join again when the assignment was made from metadata, or with a subscription, that is out of date."""
    topics, change = me.watch.topics, me.watch.change()
    if me.state is not State.STABLE or me.rejoin is not None:
        return
    if change is not None:
        me.request_rejoin(f"cached metadata has changed ({change})")
    elif topics is not None and topics != me.joined_topics:
        before, after = ", ".join(sorted(me.joined_topics)), ", ".join(sorted(topics))
        me.request_rejoin(f"subscription has changed from [{before}] to [{after}]")
