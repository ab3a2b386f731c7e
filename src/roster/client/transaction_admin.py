"""Transactions of a cluster, listed (KIP-664)."""

from collections.abc import Collection

from roster.client.cluster import Cluster
from roster.client.coordinators import ask_each_broker
from roster.client.loop import OnLoop, blocking
from roster.client.types import TransactionListing
from roster.wire.messages import ListTransactionsRequest, ListTransactionsResponse


class TransactionAdmin(OnLoop):
    """Requests about transactions, to all coordinators."""

    _cluster: Cluster

    @blocking
    async def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """List the transactional ids of the cluster, all or those in `states`, sorted by name."""
        request = ListTransactionsRequest(state_filters=list(states))
        answers = await ask_each_broker(self._cluster, request, ListTransactionsResponse, "transactions")
        listings = {
            state.transactional_id: TransactionListing(
                state.transactional_id, state.transaction_state, state.producer_id, broker
            )
            for broker, response in answers.items()
            for state in response.transaction_states
        }
        return [listings[name] for name in sorted(listings)]
