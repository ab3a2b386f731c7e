"""The broker's side of Kafka's classic group protocol, as a state machine without I/O or clock."""

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.coordinator import Coordinator

__all__ = ["Coordinator", "CoordinatorConfig"]
