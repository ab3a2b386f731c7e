"""The transactions that a cluster's coordinators list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.client.coordinators import ask_each_broker
from roster.wire.messages import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from roster.client import Admin


def states_of_transactions(admin: Admin, prefix: str = "") -> list[str]:
    """The state of each transactional id that begins so."""
    asked = ask_each_broker(admin._cluster, ListTransactionsRequest(), ListTransactionsResponse, "transactions")
    answers = admin._running().call(asked)
    listed = {row.transactional_id: row for answer in answers.values() for row in answer.transaction_states}
    return [row.transaction_state for name, row in listed.items() if name.startswith(prefix)]
