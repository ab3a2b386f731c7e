"""Registry of assignors: Assignor objects by their protocol names."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from roster.assignors.base import Assignor, ClaimSource, RebalanceProtocol
from roster.assignors.lag import LAG, LAG_COOPERATIVE_STICKY, LAG_STICKY, LagOptions
from roster.assignors.range import RANGE
from roster.assignors.roundrobin import ROUNDROBIN
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY, LAG, LAG_STICKY, LAG_COOPERATIVE_STICKY)
    }
)
"""Every assignor by its protocol name."""


def find_assignor(assignor: str | Assignor) -> Assignor:
    """Return an assignor, given itself or its name. Raises ValueError that lists the known names."""
    if isinstance(assignor, Assignor):
        return assignor
    if isinstance(assignor, str) and assignor in ASSIGNORS:
        return ASSIGNORS[assignor]
    if isinstance(assignor, type) and issubclass(assignor, Assignor):
        raise ValueError(f"{assignor.__name__} is a class; give an instance: {assignor.__name__}()")
    if isinstance(assignor, LagOptions):
        raise ValueError(f"{assignor} names no assignor; write lag_cooperative_sticky({assignor}), or lag_sticky(…)")
    raise ValueError(f"there is no assignor {assignor!r}; known are {', '.join(sorted(ASSIGNORS))}")


def as_tuple(assignors: str | Assignor | Iterable[str | Assignor]) -> tuple[str | Assignor, ...]:
    """Return the assignors as a tuple; a single assignor needs no list."""
    return (assignors,) if isinstance(assignors, str | Assignor) else tuple(assignors)


def resolve_assignors(assignors: Iterable[str | Assignor]) -> dict[str, Assignor]:
    """Return the assignors by protocol name, in the order given.

    Raises ValueError if the list is empty, names an unknown assignor or one name twice, or if the assignors share no
    rebalance protocol.
    """
    chosen: dict[str, Assignor] = {}
    for entry in assignors:
        assignor = find_assignor(entry)
        _check_attributes(assignor)
        if assignor.name in chosen:
            raise ValueError(f"names {assignor.name} twice; leave one out")
        chosen[assignor.name] = assignor
    if not chosen:
        raise ValueError(f"must name at least one of {', '.join(sorted(ASSIGNORS))}")
    if not _common(chosen.values()):
        raise ValueError(f"{', '.join(chosen)} share no rebalance mode; use them in separate groups")
    return chosen


def _check_attributes(assignor: Assignor) -> None:
    kind, name = type(assignor).__name__, getattr(assignor, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{kind}.name must be the protocol name, not {name!r}")
    protocols = assignor.supported_protocols
    if not protocols or not all(isinstance(protocol, RebalanceProtocol) for protocol in protocols):
        raise ValueError(f"{kind}.supported_protocols must list RebalanceProtocol members, not {protocols!r}")
    if not isinstance(assignor.claim_source, ClaimSource):
        raise ValueError(f"{kind}.claim_source must be a ClaimSource, not {assignor.claim_source!r}")


def rebalance_protocol(chosen: Mapping[str, Assignor]) -> RebalanceProtocol:
    """Return the highest rebalance protocol that all of the assignors support."""
    return max(_common(chosen.values()))


def _common(assignors: Iterable[Assignor]) -> frozenset[RebalanceProtocol]:
    return frozenset.intersection(*(frozenset(assignor.supported_protocols) for assignor in assignors))
