"""The requests the broker serves, and in which versions: what ApiVersions says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roster.wire import API_VERSIONS, ApiKey, Versions

_NOT_SERVED = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
_HIGHEST = {ApiKey.INIT_PRODUCER_ID: 5}
"""Versions above are for what the broker has not got: 6 for two-phase commit (KIP-939)."""

SERVED: Mapping[ApiKey, Versions] = MappingProxyType(
    {
        key: Versions(versions.low, _HIGHEST.get(key, versions.high))
        for key, versions in API_VERSIONS.items()
        if key not in _NOT_SERVED
    }
)
"""The versions of each request that the broker serves."""


def is_served(api_key: int, version: int) -> bool:
    """Return True if the broker serves this version of a request."""
    versions = SERVED.get(api_key)  # type: ignore[call-overload]
    return versions is not None and version in versions
