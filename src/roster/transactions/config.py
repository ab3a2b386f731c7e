"""Settings of the transaction coordinator, with Apache Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from roster.model.options import Option, problem_of

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and delays; times are in ms. Raises ValueError for an invalid setting."""

    partitions: Annotated[
        int,
        Option(
            help="partitions of `__transaction_state`; a transactional id lives in the one it hashes to",
            least=1,
            kafka="transaction.state.log.num.partitions",
        ),
    ] = 50
    offsets_partitions: Annotated[
        int, Option(help="partitions of `__consumer_offsets`, for the offsets of a group in a transaction", least=1)
    ] = 50
    max_timeout_ms: Annotated[
        int,
        Option(
            help="longest transaction timeout that a producer may ask for",
            unit="ms",
            least=1,
            kafka="transaction.max.timeout.ms",
            flag="transaction-max-timeout-ms",
        ),
    ] = 900_000
    expiration_ms: Annotated[
        int,
        Option(
            help="time that a transactional id without transactions is kept",
            unit="ms",
            least=1,
            kafka="transactional.id.expiration.ms",
            flag="transactional-id-expiration-ms",
        ),
    ] = 7 * _DAY_MS
    expiration_check_interval_ms: Annotated[
        int, Option(help="time between two checks for expired transactional ids", unit="ms", least=1)
    ] = 3_600_000

    def __post_init__(self) -> None:
        if problem := problem_of(self):
            raise ValueError(problem)
