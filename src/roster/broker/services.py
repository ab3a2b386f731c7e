"""The parts of a running broker that request handlers use."""

from dataclasses import dataclass, field

from roster.broker.config import BrokerConfig
from roster.broker.coordinator_shell import CoordinatorShell
from roster.broker.hooks import Hooks
from roster.broker.log.flusher import Flusher
from roster.broker.log.retention import Retention
from roster.broker.meta import MetaFile
from roster.broker.record_check import RecordCheck
from roster.broker.refusals import Refusals
from roster.broker.security.session import Security
from roster.broker.topics import TopicCatalogue
from roster.broker.transaction_shell import TransactionShell


@dataclass(slots=True)
class Services:
    """The parts of a running broker."""

    config: BrokerConfig
    meta: MetaFile
    topics: TopicCatalogue
    flusher: Flusher
    group_coordinator: CoordinatorShell
    transaction_coordinator: TransactionShell
    security: Security
    retention: Retention
    host: str = ""
    """Host and port in Metadata and FindCoordinator responses."""
    port: int = 0
    unsent_bytes: int = 0
    """Bytes of responses not sent yet, over all connections."""
    refusals: Refusals = field(default_factory=Refusals)
    record_check: RecordCheck = field(default_factory=RecordCheck)
    hooks: Hooks = field(default_factory=Hooks)
