"""The embedded server: sockets, api dispatch, log segments on disk, and the coordinator they run."""

from roster.broker.config import BrokerConfig, BrokerError, LogConfig, parse_listen
from roster.broker.server import Broker, run

__all__ = ["Broker", "BrokerConfig", "BrokerError", "LogConfig", "parse_listen", "run"]
