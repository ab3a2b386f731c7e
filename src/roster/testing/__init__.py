"""The public test kit: a broker in the test's process, or in one to kill; scripted faults, a clock, a registry."""

from roster.testing.broker import BrokerProcess, quick_config, running_broker
from roster.testing.embedded import EmbeddedBroker, GroupView
from roster.testing.errors import KitArgumentError, KitTimeoutError
from roster.testing.faults import Fault
from roster.testing.rebalances import GroupMember, Rebalance
from roster.testing.schema_registry import SchemaRegistry
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
    "SchemaRegistry",
    "StoredRecord",
    "quick_config",
    "running_broker",
]
