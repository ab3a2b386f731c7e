"""Heartbeat: the request and its response."""

from roster.member import error_table, requests
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.leave import fail
from roster.member.outbox import InFlight
from roster.member.recovery import mark_coordinator_unknown, reset_generation
from roster.member.states import MemberState
from roster.wire import ApiKey, ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import HeartbeatResponse


def send_heartbeat(me: MemberContext) -> None:
    """Schedule the next heartbeat; send one now unless another is in flight.

    None is sent after a failed join: the next JoinGroup renews the session. If the lost response was about a new
    generation, the coordinator would refuse a heartbeat of the previous one.
    """
    me.schedule_heartbeat()
    joins_next = me.state is MemberState.UNJOINED and not me.ownership.revoking
    if me.coordinator is None or joins_next or me.out.in_flight(ApiKey.HEARTBEAT):
        return
    request = requests.heartbeat(me.config, me.identity)
    me.send(request, me.coordinator, timeout_ms=me.config.heartbeat_timeout_ms)


def on_heartbeat_response(me: MemberContext, response: HeartbeatResponse, request: InFlight) -> None:
    """Rejoin if the group is rebalancing; reset or fail if the coordinator refuses this member."""
    code = error_code(response.error_code)
    match error_table.HEARTBEAT.get(code, Action.FATAL):
        case Action.REJOIN:
            if me.state is MemberState.STABLE and me.rejoin_reason is None:
                me.request_rejoin("group is already rebalancing")
        case Action.REDISCOVER:
            mark_coordinator_unknown(me, code.name)
        case Action.RESET_GENERATION if me.generation_in_doubt:
            pass  # the response to SyncGroup decides
        case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
            if me.is_current(request) and me.heartbeats_due():
                reset_generation(me, f"encountered {code.name} from Heartbeat response", action)
        case Action.FATAL if code is not ErrorCode.FENCED_INSTANCE_ID or me.is_current(request):
            fail(me, fatal_error("Heartbeat", code, me.config))
