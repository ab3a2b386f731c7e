"""Recoverable failures: a failed join or sync, a lost coordinator, a reset generation."""

from roster.member.causes import Cause
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.events import Disconnect
from roster.member.failures import fatal_error
from roster.member.leave import fail
from roster.member.outbox import InFlight
from roster.member.states import MemberState, Trigger
from roster.member.timers import DISCOVER, HEARTBEAT, JOIN
from roster.member.types import ReportKind
from roster.model import NO_GENERATION
from roster.wire import ApiKey, ErrorCode

IMMEDIATE_ATTEMPTS = 5
"""Consecutive retries of a join without back-off; later ones back off whatever the error."""


def on_rebalance_error(me: MemberContext, api: str, code: ErrorCode, action: Action, request: InFlight) -> None:
    """Handle an error in a JoinGroup or SyncGroup response."""
    reason = f"rebalance failed due to {code.name}"
    match action:
        case Action.RETRY:
            attempt_failed(me, reason, back_off=False)
        case Action.RESET_GENERATION if me.generation_in_doubt:  # no other one has begun: nothing is lost
            attempt_failed(me, reason, back_off=False)
        case Action.BACK_OFF if me.state is MemberState.COMPLETING_REBALANCE:
            repeat_sync(me, reason)
        case Action.BACK_OFF:
            attempt_failed(me, reason, back_off=True)
        case Action.REDISCOVER:
            mark_coordinator_unknown(me, code.name)
        case Action.RESET_MEMBER | Action.RESET_GENERATION:
            if me.is_current(request):
                reset_generation(me, f"encountered {code.name} from {api} response", action)
            else:
                attempt_failed(me, reason, back_off=False)
        case _:
            fail(me, fatal_error(api, code, me.config))


def attempt_failed(me: MemberContext, reason: str, *, back_off: bool) -> None:
    """Rejoin with the same member id, at once or after a back-off."""
    me.transition(Trigger.ATTEMPT_FAILED)
    drop_attempt(me)
    me.request_rejoin(reason)
    count_failed_join(me, reason, back_off=back_off)
    if me.heartbeats_due():
        me.schedule_heartbeat()


def mark_coordinator_unknown(me: MemberContext, reason: str) -> None:
    """Look for the coordinator again; generation, member id and partitions stay.

    JoinGroup or SyncGroup is sent again: the new coordinator knows the generation.
    """
    if me.coordinator is None:
        return
    me.report(ReportKind.COORDINATOR, f"the coordinator at {me.coordinator} is lost: {reason}")
    me.out.emit(Disconnect(me.coordinator))
    me.out.drop_node(me.coordinator)
    me.coordinator = None
    me.out.cancel(HEARTBEAT)
    if me.state is MemberState.PREPARING_REBALANCE:
        attempt_failed(me, "the coordinator was lost", back_off=True)
    elif me.state is MemberState.COMPLETING_REBALANCE:
        me.generation_in_doubt = True
        repeat_sync(me, "the coordinator was lost")
    if not me.coordinator_works:  # until the cluster notices its death, brokers still name a dead one
        me.back_off(DISCOVER, reason)


def repeat_sync(me: MemberContext, reason: str) -> None:
    """Send SyncGroup again after a back-off."""
    count_failed_join(me, reason, back_off=True)


def reset_generation(me: MemberContext, reason: str, action: Action) -> None:
    """Drop the generation, every partition and, for RESET_MEMBER, the member id; then join again."""
    me.transition(Trigger.RESET)
    drop_attempt(me)
    me.generation = NO_GENERATION
    if action is Action.RESET_MEMBER:
        me.member_id = ""
    me.leader = False
    me.expects_second_round = False
    me.missed_generation = False
    me.describes_assignment = False
    me.topics.stop_tracking_group()
    me.last_assignment = (NO_GENERATION, frozenset())
    me.rejoins_after_revocation = False
    me.cooperative_sync = None
    me.out.cancel(HEARTBEAT)
    me.lose(me.ownership.owned_or_revoking, reason)
    me.request_rejoin(reason, Cause.EXPIRED if action is Action.RESET_MEMBER else None)
    count_failed_join(me, reason, back_off=False)


def drop_attempt(me: MemberContext) -> None:
    """Ignore the outstanding responses and results of the failed join or sync."""
    me.generation_in_doubt = False
    me.assignments = None
    me.assigning = None
    me.group = {}
    me.out.drop(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


def count_failed_join(me: MemberContext, reason: str, *, back_off: bool) -> None:
    """Count a failed join; back off if asked to, or after too many immediate attempts."""
    if back_off or me.failures[JOIN] >= IMMEDIATE_ATTEMPTS:
        me.back_off(JOIN, reason)
    else:
        me.failures[JOIN] += 1
