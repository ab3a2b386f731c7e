"""FindCoordinator: the request and its response."""

from __future__ import annotations

from roster.member import error_table, requests
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.heartbeat import send_heartbeat
from roster.member.leave import fail
from roster.member.timers import DISCOVER
from roster.member.types import Node, ReportKind
from roster.wire import ApiKey
from roster.wire.errors import error_code
from roster.wire.messages import FindCoordinatorResponse


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
