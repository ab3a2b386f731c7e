"""OffsetCommit: the request for the first queued commit and its response."""

from roster.member import error_table
from roster.member.commit_queue import split_errors
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.leave import fail
from roster.member.outbox import InFlight
from roster.member.recovery import mark_coordinator_unknown, reset_generation
from roster.member.requests import offset_commit
from roster.member.states import MemberState
from roster.wire import ErrorCode
from roster.wire.messages import OffsetCommitResponse


def send_offset_commit(me: MemberContext) -> None:
    """Send the next queued commit, if the state of the group allows one."""
    me.commits.fail_fenced(me.ownership)
    if me.coordinator is None or me.state is MemberState.COMPLETING_REBALANCE:
        return  # between JoinGroup and SyncGroup the coordinator refuses commits
    commit = me.commits.due()
    if commit is not None:
        request = offset_commit(commit.offsets, me.config.group, me.identity, me.config.group_instance_id)
        me.send(request, me.coordinator)


def on_offset_commit_response(me: MemberContext, response: OffsetCommitResponse, request: InFlight) -> None:
    """Complete the commit, retry it, or handle an error about this member."""
    code, own = split_errors(response)
    match error_table.OFFSET_COMMIT.get(code, Action.FATAL):
        case Action.REJOIN:
            if me.state is MemberState.STABLE and me.rejoin_reason is None:
                me.request_rejoin("offset commit failed since group is already rebalancing")
            me.commits.back_off(code)
        case Action.BACK_OFF:
            me.commits.back_off(code)
        case Action.REDISCOVER:
            me.commits.back_off(code)
            if request.to == me.coordinator:
                mark_coordinator_unknown(me, code.name)
        case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
            if me.is_current(request) and me.state is MemberState.STABLE:
                reset_generation(me, f"encountered {code.name} from OffsetCommit response", action)
            else:
                me.commits.back_off(code)
        case Action.FATAL if code is ErrorCode.FENCED_INSTANCE_ID and not me.is_current(request):
            me.commits.back_off(code)
        case Action.FATAL:
            fail(me, fatal_error("OffsetCommit", code, me.config))
        case _:
            me.commits.complete(own)
