"""What a member exchanges with its coordinator between rebalances: heartbeats and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member import matrix, requests
from roster.member.commits import commit_request, split_errors
from roster.member.ending import fail
from roster.member.failures import fatal_answer
from roster.member.matrix import Action, error_code
from roster.member.setbacks import coordinator_lost, reset
from roster.member.transitions import State
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from roster.member.membership import Membership
    from roster.member.outbox import Sent
    from roster.wire.messages import HeartbeatResponse, OffsetCommitResponse


def heartbeat(me: Membership) -> None:
    """Send one, unless another is on its way, and set the time of the next."""
    me.set_heartbeat()
    if me.coordinator is None or me.out.in_flight("heartbeat"):
        return
    request = requests.heartbeat(me.config, me.identity)
    me.send("heartbeat", request, me.coordinator, timeout_ms=me.config.heartbeat_timeout_ms)


def heartbeat_answered(me: Membership, response: HeartbeatResponse, sent: Sent) -> None:
    """The coordinator says whether this member still belongs to the group, and whether the group is rebalancing."""
    code = error_code(response.error_code)
    match matrix.HEARTBEAT.get(code, Action.FATAL):
        case Action.REJOIN:
            if me.state is State.STABLE and me.rejoin is None:
                me.request_rejoin("group is already rebalancing")
        case Action.REDISCOVER:
            coordinator_lost(me, code.name)
        case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
            if me.sent_as_now(sent) and me.beating():
                reset(me, f"encountered {code.name} from Heartbeat response", action)
        case Action.FATAL if code is not ErrorCode.FENCED_INSTANCE_ID or me.sent_as_now(sent):
            fail(me, fatal_answer("Heartbeat", code, me.config))


def send_commit(me: Membership) -> None:
    """Send the commit that is due, if it can go through now."""
    me.commits.fence(me.holdings)
    if me.coordinator is None or me.state is State.COMPLETING_REBALANCE:
        return  # between join and sync it would be refused
    commit = me.commits.due()
    if commit is not None:
        request = commit_request(commit, me.config.group, *me.identity, me.config.group_instance_id)
        me.send("commit", request, me.coordinator)


def commit_answered(me: Membership, response: OffsetCommitResponse, sent: Sent) -> None:
    """The commit is written, or must be tried again, or shows that this member's place is gone."""
    code, own = split_errors(response)
    match matrix.COMMIT.get(code, Action.FATAL):
        case Action.REJOIN:
            if me.state is State.STABLE and me.rejoin is None:
                me.request_rejoin("offset commit failed since group is already rebalancing")
            me.commits.delayed(code)
        case Action.BACK_OFF:
            me.commits.delayed(code)
        case Action.REDISCOVER:
            me.commits.delayed(code)
            if sent.to == me.coordinator:
                coordinator_lost(me, code.name)
        case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
            if me.sent_as_now(sent) and me.state is State.STABLE:
                reset(me, f"encountered {code.name} from OffsetCommit response", action)
            else:
                me.commits.delayed(code)
        case Action.FATAL if code is ErrorCode.FENCED_INSTANCE_ID and not me.sent_as_now(sent):
            me.commits.delayed(code)
        case Action.FATAL:
            fail(me, fatal_answer("OffsetCommit", code, me.config))
        case _:
            me.commits.answered(own)
