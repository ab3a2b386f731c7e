"""Settings of the transaction coordinator, with Apache Kafka's defaults."""

from dataclasses import dataclass

from roster.model.options import option, problem_of

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and delays; times are in ms. Raises ValueError for an invalid setting."""

    partitions: int = option(
        50,
        "partitions of `__transaction_state`; a transactional id lives in the one it hashes to",
        least=1,
        kafka="transaction.state.log.num.partitions",
    )
    offsets_partitions: int = option(
        50, "partitions of `__consumer_offsets`, for the offsets of a group in a transaction", least=1
    )
    max_timeout_ms: int = option(
        900_000,
        "longest transaction timeout that a producer may ask for",
        unit="ms",
        least=1,
        kafka="transaction.max.timeout.ms",
        flag="transaction-max-timeout-ms",
    )
    expiration_ms: int = option(
        7 * _DAY_MS,
        "time that a transactional id without transactions is kept",
        unit="ms",
        least=1,
        kafka="transactional.id.expiration.ms",
        flag="transactional-id-expiration-ms",
    )
    expiration_check_interval_ms: int = option(
        3_600_000, "time between two checks for expired transactional ids", unit="ms", least=1
    )

    def __post_init__(self) -> None:
        if problem := problem_of(self):
            raise ValueError(problem)
