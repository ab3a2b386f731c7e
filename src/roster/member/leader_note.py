"""What a leader notes of a plan: why each partition moves, and the proof that no plan is better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roster.assignors import ASSIGNORS, Assignor
from roster.assignors.certificate import verify
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY
from roster.model import Plan
from roster.model.plan import REASONS
from roster.wire.consumer.leader_note import MAX_SIZE, LeaderNote

_MAX_PROVED = 200_000
"""Members times lists of topics up to which a proof takes no more than tenths of a second."""


def note_of(assignor: Assignor, plan: Plan) -> LeaderNote:
    """Return the note on a plan, without what only the member knows."""
    problem = plan.problem
    moved, reason = plan.reasons()
    topic, number = problem.topic_of()[moved], problem.number_of()[moved]
    moves, size = [], 0
    for pair in np.unique(topic.astype(np.int64) * len(REASONS) + reason).tolist():
        t, why = divmod(pair, len(REASONS))
        bits = np.zeros(int(problem.counts[t]), np.bool_)
        bits[number[(topic == t) & (reason == why)]] = True
        listed = np.packbits(bits, bitorder="little").tobytes()
        moves.append(LeaderNote.Moves(topic=problem.topics[t], why=REASONS[why], partitions=listed))
        size += len(problem.topics[t].encode()) + len(REASONS[why]) + len(listed)
        if size > MAX_SIZE:
            moves = []
            break
    return LeaderNote(proof=_proof(assignor, plan), moved=len(moved), moves=moves)


def _proof(assignor: Assignor, plan: Plan) -> str | None:
    problem = plan.problem
    if plan.lag is not None:
        ratio = f"{plan.lag.ratio:.3f}"
        return "" if ratio == "1.000" else f"the fullest member has {ratio} times the lag that any plan leaves it"
    if assignor not in ASSIGNORS.values() or len(problem.members) * len(problem.subscriptions) > _MAX_PROVED:
        return None
    keeps_racks = assignor in (STICKY, COOPERATIVE_STICKY)
    return verify(problem if keeps_racks else replace(problem, racks=None), plan).flaw
