"""What a member loses when something goes wrong short of the end: an attempt to join, the coordinator, its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member.ending import fail
from roster.member.events import Disconnect
from roster.member.failures import fatal_answer
from roster.member.matrix import Action
from roster.member.membership import HEARTBEAT, JOIN
from roster.member.transitions import State, Trigger
from roster.model import NO_GENERATION

if TYPE_CHECKING:
    from roster.member.membership import Membership
    from roster.member.outbox import Sent
    from roster.wire import ErrorCode

IMMEDIATE_ATTEMPTS = 5
"""Joins that follow each other at once; after that even errors that ask for an immediate retry pause."""


def attempt_refused(me: Membership, api: str, code: ErrorCode, action: Action, sent: Sent) -> None:
    """JoinGroup or SyncGroup was answered with an error."""
    reason = f"rebalance failed due to {code.name}"
    match action:
        case Action.RETRY:
            attempt_failed(me, reason, pause=False)
        case Action.BACK_OFF:
            attempt_failed(me, reason, pause=True)
        case Action.REDISCOVER:
            coordinator_lost(me, code.name)
        case Action.RESET_MEMBER | Action.RESET_GENERATION:
            if me.sent_as_now(sent):
                reset(me, f"encountered {code.name} from {api} response", action)
            else:
                attempt_failed(me, reason, pause=False)
        case _:
            fail(me, fatal_answer(api, code, me.config))


def attempt_failed(me: Membership, reason: str, *, pause: bool) -> None:
    """Join or sync did not succeed: try again, at once or after a pause, as the same member."""
    me.move(Trigger.ATTEMPT_FAILED)
    drop_attempt(me)
    me.request_rejoin(reason)
    pause_join(me, reason, pause=pause)
    if me.beating():
        me.set_heartbeat()


def coordinator_lost(me: Membership, reason: str) -> None:
    """Look for the coordinator again; an attempt to join is over, but generation, member id and partitions stay."""
    if me.coordinator is None:
        return
    me.report("coordinator", f"the coordinator at {me.coordinator} is lost: {reason}")
    me.out.emit(Disconnect(me.coordinator))
    me.out.forget_node(me.coordinator)
    me.coordinator = None
    me.out.cancel(HEARTBEAT)
    if me.state in (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE):
        attempt_failed(me, "the coordinator was lost", pause=True)


def reset(me: Membership, reason: str, action: Action) -> None:
    """The coordinator does not know this member in this generation: what it held is lost."""
    me.move(Trigger.RESET)
    drop_attempt(me)
    me.generation = NO_GENERATION
    if action is Action.RESET_MEMBER:
        me.member_id = ""
    me.leader = False
    me.watch.follow()
    me.last_assignment = (NO_GENERATION, frozenset())
    me.settling = False
    me.out.cancel(HEARTBEAT)
    me.lose(me.holdings.held, reason)
    me.request_rejoin(reason)
    pause_join(me, reason, pause=False)


def drop_attempt(me: Membership) -> None:
    """Forget what a join or sync is still waiting for; answers that come after all are ignored."""
    me.assigning = None
    me.group = {}
    me.out.forget("join", "sync")


def pause_join(me: Membership, reason: str, *, pause: bool) -> None:
    """Count one more failure, and hold back the next join if need be."""
    if pause or me.tries[JOIN] >= IMMEDIATE_ATTEMPTS:
        me.pause(JOIN, reason)
    else:
        me.tries[JOIN] += 1
