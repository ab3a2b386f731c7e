"""What a client may do with the cluster: users, ACLs, and what tools ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.model.acl import AclOperation
from roster.wire import ErrorCode
from roster.wire.messages import (
    AlterUserScramCredentialsResponse,
    DescribeLogDirsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.broker.gate.asked import Asked, Gate

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = "Cluster authorization failed."


async def anyone(asked: Asked) -> Any:
    """No right is needed; what is in the response depends on rights."""
    return await asked.answer()


def _needs(operation: AclOperation, refused: Callable[[Asked], Any] = lambda asked: asked.refuse(_REFUSED)) -> Gate:
    """Return the gate of requests that need an operation on the cluster."""

    async def gate(asked: Asked) -> Any:
        return await asked.answer() if asked.access.may_on_cluster(operation) else refused(asked)

    return gate


describe = _needs(AclOperation.DESCRIBE)
alter = _needs(AclOperation.ALTER)
describe_configs = _needs(AclOperation.DESCRIBE_CONFIGS)
describe_log_dirs = _needs(AclOperation.DESCRIBE, lambda _: DescribeLogDirsResponse(error_code=_REFUSED))


async def alter_users(asked: Asked) -> Any:
    """ALTER on the cluster."""
    if asked.access.may_on_cluster(AclOperation.ALTER):
        return await asked.answer()
    names = dict.fromkeys(each.name for each in (*asked.request.deletions, *asked.request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=name, error_code=_REFUSED, error_message=_TEXT
            )
            for name in names
        ]
    )
