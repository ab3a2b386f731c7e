"""FindCoordinator, and Metadata with the rejoin that a change of topics causes."""

from roster.member import error_table, requests
from roster.member.causes import Cause
from roster.member.config import check_selection
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.heartbeat import send_heartbeat
from roster.member.leave import fail
from roster.member.states import MemberState
from roster.member.timers import DISCOVER, METADATA
from roster.member.types import Node, ReportKind, Selection
from roster.wire import ApiKey
from roster.wire.errors import error_code
from roster.wire.messages import FindCoordinatorResponse, MetadataResponse


def send_find_coordinator(me: MemberContext) -> None:
    """Send FindCoordinator, unless one is in flight or backing off."""
    if me.out.backing_off(DISCOVER) or me.out.in_flight(ApiKey.FIND_COORDINATOR):
        return
    me.send(requests.find_coordinator(me.config))


def on_find_coordinator_response(me: MemberContext, response: FindCoordinatorResponse) -> None:
    """Store the coordinator, or retry later."""
    if not response.coordinators:
        me.back_off(DISCOVER, "the broker named no coordinator")
        return
    coordinator = response.coordinators[0]
    code = error_code(coordinator.error_code)
    match error_table.FIND_COORDINATOR.get(code, Action.FATAL):
        case Action.ACCEPT:
            me.coordinator_works = False
            me.coordinator = Node(coordinator.node_id, coordinator.host, coordinator.port)
            text = f"the group's coordinator is broker {coordinator.node_id} at {me.coordinator}"
            me.report(ReportKind.COORDINATOR, text)
            if me.heartbeats_due():
                send_heartbeat(me)
        case Action.BACK_OFF:
            me.back_off(DISCOVER, f"{code.name}: {coordinator.error_message or 'no coordinator yet'}")
        case _:
            fail(me, fatal_error("FindCoordinator", code, me.config))


def change_selection(me: MemberContext, selection: Selection) -> None:
    """Subscribe to other topics. Raises ConfigError."""
    check_selection(selection)
    me.topics.select(selection)
    if me.topics.subscribed is None:
        send_metadata(me)
    rejoin_if_topics_changed(me)


def send_metadata(me: MemberContext) -> None:
    """Send Metadata, unless one is in flight or backing off."""
    if me.out.backing_off(METADATA) or me.out.in_flight(ApiKey.METADATA):
        return
    me.send(me.topics.request())


def on_metadata_response(me: MemberContext, response: MetadataResponse) -> None:
    """Store the metadata and schedule the next refresh."""
    me.failures[METADATA] = 0
    me.topics.update(response)
    schedule_refresh(me)


def schedule_refresh(me: MemberContext) -> None:
    """Schedule a refresh after `metadata_max_age_ms`, if new metadata can have an effect."""
    if me.topics.refresh_needed:
        me.out.set(METADATA, me.out.now + me.config.metadata_max_age_ms)


def rejoin_if_topics_changed(me: MemberContext) -> None:
    """Rejoin if partition counts differ from the assignment's, or the subscription from the last JoinGroup's."""
    topics, change = me.topics.subscribed, me.topics.change()
    if me.state is not MemberState.STABLE or me.rejoin_reason is not None:
        return
    if change is not None:
        me.request_rejoin(f"cached metadata has changed ({change})", Cause.PARTITIONS)
    elif topics is not None and topics != me.joined_topics:
        before, after = ", ".join(sorted(me.joined_topics)), ", ".join(sorted(topics))
        me.request_rejoin(f"subscription has changed from [{before}] to [{after}]", Cause.SUBSCRIPTION)
