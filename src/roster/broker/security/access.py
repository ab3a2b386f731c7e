"""Rights of the client of one connection."""

from dataclasses import dataclass

from roster.broker.security.authorizer import Authorizer
from roster.broker.security.principals import ANONYMOUS
from roster.model.acl import CLUSTER_NAME, AclOperation, ResourceType

_ON: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that there are on each type of resource, as Kafka's `AclEntry` has them."""
NOT_ASKED = -(2**31)
"""Authorized operations in a response when the client did not ask for them."""


@dataclass(frozen=True, slots=True)
class Access:
    """A principal at a host; without an authorizer it may do everything."""

    principal: str = ANONYMOUS
    host: str = ""
    authorizer: Authorizer | None = None

    @property
    def is_checked(self) -> bool:
        """True if ACLs decide."""
        return self.authorizer is not None

    def may(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Return True if the client may do something with a resource."""
        return self.authorizer is None or self.authorizer.allows(self.principal, self.host, operation, kind, name)

    def may_on_topic(self, operation: AclOperation, name: str) -> bool:
        """Return True if the client may do something with a topic."""
        return self.may(operation, ResourceType.TOPIC, name)

    def may_on_group(self, operation: AclOperation, name: str) -> bool:
        """Return True if the client may do something with a group."""
        return self.may(operation, ResourceType.GROUP, name)

    def may_be_member(self, group_id: str) -> bool:
        """Return True if the client may join a group and commit its offsets: READ."""
        return self.may_on_group(AclOperation.READ, group_id)

    def may_on_cluster(self, operation: AclOperation) -> bool:
        """Return True if the client may do something with the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_transaction(self, operation: AclOperation, name: str) -> bool:
        """Return True if the client may do something with a transactional id."""
        return self.may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_on_some_topic(self, operation: AclOperation) -> bool:
        """Return True if there may be a topic with which the client may do something."""
        return self.authorizer is None or self.authorizer.allows_any(
            self.principal, self.host, operation, ResourceType.TOPIC
        )

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return what the client may do with a resource: bit n stands for operation n."""
        return sum(1 << operation for operation in _ON[kind] if self.may(operation, kind, name))

    def operations_on_cluster(self) -> int:
        """Return what the client may do with the cluster; 0 if it may not describe it, as in Kafka."""
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME) if self.may_on_cluster(AclOperation.DESCRIBE) else 0


OPEN = Access()
"""Rights on a broker without an authorizer: all."""
