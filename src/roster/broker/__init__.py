"""The embedded server: sockets, api dispatch, log segments on disk, and the coordinator they run."""

import sys

if sys.platform == "win32":
    raise ImportError("the embedded broker runs on Linux and macOS only; on Windows run it in WSL or in a container")

from roster.broker.config import BrokerConfig, LogConfig, parse_listen
from roster.broker.errors import BrokerFailedError, BrokerStartError
from roster.broker.security.config import BrokerSecurity
from roster.broker.server import Broker, run

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerFailedError",
    "BrokerSecurity",
    "BrokerStartError",
    "LogConfig",
    "parse_listen",
    "run",
]
