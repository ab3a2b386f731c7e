"""The decision of ACLs, without I/O: as Apache Kafka's StandardAuthorizer makes it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from roster.model.acl import WILDCARD, AclBinding, AclOperation, AclPermission, PatternType, ResourceType

_IMPLIED_BY = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""To be allowed one of these is to be allowed the operation; to be denied one is not."""
ANY_USER = "User:*"
_CACHED = 20_000
"""Decisions that are remembered, all together."""


class Authorizer:
    """Decides by ACLs, super users first; decisions are remembered until the ACLs change."""

    def __init__(
        self, acls: Iterable[AclBinding] = (), super_users: Iterable[str] = (), *, allow_everyone: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self.replace(acls)

    def replace(self, acls: Iterable[AclBinding]) -> None:
        """Decide by other ACLs from now on."""
        self._literal: dict[tuple[ResourceType, str], list[AclBinding]] = defaultdict(list)
        self._prefixed: dict[ResourceType, list[AclBinding]] = defaultdict(list)
        self._cache: dict[tuple[str, str, AclOperation, ResourceType, str], bool] = {}
        for acl in acls:
            if acl.pattern_type is PatternType.PREFIXED:
                self._prefixed[acl.resource_type].append(acl)
            else:
                self._literal[acl.resource_type, acl.resource_name].append(acl)

    def allows(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Return True if a principal at a host may do something with a resource."""
        key = (principal, host, operation, kind, name)
        decided = self._cache.get(key)
        if decided is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            decided = self._cache[key] = self._decide(*key)
        return decided

    def _decide(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        of_resource = list(self._covering(kind, name))
        if not of_resource:
            return self._allow_everyone
        applicable = [acl for acl in of_resource if _is_for(acl, principal, host)]
        denied = {acl.operation for acl in applicable if acl.permission is AclPermission.DENY}
        if denied & {operation, AclOperation.ALL}:
            return False
        allowed = {acl.operation for acl in applicable if acl.permission is AclPermission.ALLOW}
        return bool(allowed & {operation, AclOperation.ALL, *_IMPLIED_BY.get(operation, ())})

    def _covering(self, kind: ResourceType, name: str) -> Iterator[AclBinding]:
        """Yield the ACLs whose pattern matches a resource."""
        yield from self._literal.get((kind, name), ())
        if name != WILDCARD:
            yield from self._literal.get((kind, WILDCARD), ())
        for acl in self._prefixed.get(kind, ()):
            if acl.covers(name):
                yield acl

    def allows_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
        """Return True if there may be a resource of a type with which the principal may do this (KIP-679)."""
        if principal in self._super_users:
            return True
        applicable = [
            acl
            for acl in self._of_type(kind)
            if _is_for(acl, principal, host) and acl.operation in (operation, AclOperation.ALL)
        ]
        denied = [acl for acl in applicable if acl.permission is AclPermission.DENY]
        if any(acl.pattern_type is PatternType.LITERAL and acl.resource_name == WILDCARD for acl in denied):
            return False
        allowed = [acl for acl in applicable if acl.permission is AclPermission.ALLOW]
        if self._allow_everyone:
            return True
        return any(not any(_dominates(deny, allow) for deny in denied) for allow in allowed)

    def _of_type(self, kind: ResourceType) -> Iterator[AclBinding]:
        for (of, _), acls in self._literal.items():
            if of is kind:
                yield from acls
        yield from self._prefixed.get(kind, ())


def _is_for(acl: AclBinding, principal: str, host: str) -> bool:
    return acl.principal in (principal, ANY_USER) and acl.host in (host, WILDCARD)


def _dominates(deny: AclBinding, allow: AclBinding) -> bool:
    """Return True if nothing that is allowed escapes the denial."""
    if deny.pattern_type is PatternType.PREFIXED:
        is_wildcard = allow.pattern_type is PatternType.LITERAL and allow.resource_name == WILDCARD
        return not is_wildcard and allow.resource_name.startswith(deny.resource_name)
    return allow.pattern_type is PatternType.LITERAL and allow.resource_name == deny.resource_name
