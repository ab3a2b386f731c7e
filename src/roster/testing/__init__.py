"""The public test kit: a Kafka broker in the test's process, or in a process to kill; scripted faults and a clock."""

from roster.testing.broker import BrokerProcess, quick_config, running_broker
from roster.testing.embedded import EmbeddedBroker, GroupView
from roster.testing.errors import KitArgumentError, KitTimeoutError
from roster.testing.faults import Fault
from roster.testing.rebalances import GroupMember, Rebalance
from roster.testing.stored import StoredRecord

__all__ = [
    "BrokerProcess",
    "EmbeddedBroker",
    "Fault",
    "GroupMember",
    "GroupView",
    "KitArgumentError",
    "KitTimeoutError",
    "Rebalance",
    "StoredRecord",
    "quick_config",
    "running_broker",
]
