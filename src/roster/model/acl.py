"""ACLs in Kafka's terms: a resource pattern, a principal, a host, an operation, a permission (KIP-11, KIP-290).

Numbers are those of Kafka's protocol. Filters match as Kafka's `AclBindingFilter` does.
"""

from dataclasses import dataclass
from enum import IntEnum

WILDCARD = "*"
"""Stands for any resource name in a literal pattern, and for any host; `User:*` stands for any principal."""
CLUSTER_NAME = "kafka-cluster"
"""The one resource of type CLUSTER."""


class ResourceType(IntEnum):
    """Kind of resource that an ACL is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Way to match the name of a resource pattern."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operation of a client."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Effect of an ACL: allow or deny."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL: `principal` from `host` is allowed or denied `operation` on the resources that match the pattern."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def covers(self, name: str) -> bool:
        """Return True if the pattern matches a resource of this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs: None and ANY match everything; MATCH selects all patterns that cover the name."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, acl: AclBinding) -> bool:
        """Return True if the filter selects this ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is PatternType.MATCH:
            return acl.covers(self.resource_name)
        return self.resource_name == acl.resource_name
