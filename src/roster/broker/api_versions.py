"""The requests the broker serves, and in which versions: what ApiVersions says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roster.wire import API_VERSIONS, ApiKey, Versions

_HIGHEST = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.LIST_TRANSACTIONS: 1,
}
"""Versions above are for what the broker has not got: two-phase commit (KIP-939), requests between brokers, and
regular expressions of clients, which can take for ever to match.
"""

SERVED: Mapping[ApiKey, Versions] = MappingProxyType(
    {key: Versions(versions.low, _HIGHEST.get(key, versions.high)) for key, versions in API_VERSIONS.items()}
)
"""The versions of each request that the broker serves."""


_PAIRS = frozenset((int(key), version) for key, versions in SERVED.items() for version in versions)


def is_served(api_key: int, version: int) -> bool:
    """Return True if the broker serves this version of a request."""
    return (api_key, version) in _PAIRS
