"""What a client may do with the cluster: users, ACLs, and what tools ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.broker.handlers.cluster_admin import refused_elections
from roster.model.acl import AclOperation
from roster.wire import ErrorCode
from roster.wire.messages import (
    AlterUserScramCredentialsResponse,
    DescribeClientQuotasResponse,
    DescribeLogDirsResponse,
)

if TYPE_CHECKING:
    from roster.broker.gate.asked import Asked

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = "Cluster authorization failed."


async def anyone(asked: Asked) -> Any:
    """No right is needed; what is in the response depends on rights."""
    return await asked.answer()


async def describe(asked: Asked) -> Any:
    """DESCRIBE on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.DESCRIBE):
        return asked.refuse(_REFUSED)
    return await asked.answer()


async def alter(asked: Asked) -> Any:
    """ALTER on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.ALTER):
        return asked.refuse(_REFUSED)
    return await asked.answer()


async def describe_configs(asked: Asked) -> Any:
    """DESCRIBE_CONFIGS on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.DESCRIBE_CONFIGS):
        return asked.refuse(_REFUSED)
    return await asked.answer()


async def describe_client_quotas(asked: Asked) -> Any:
    """DESCRIBE_CONFIGS on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.DESCRIBE_CONFIGS):
        return DescribeClientQuotasResponse(error_code=_REFUSED, error_message=_TEXT, entries=None)
    return await asked.answer()


async def describe_log_dirs(asked: Asked) -> Any:
    """DESCRIBE on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=_REFUSED)
    return await asked.answer()


async def elect_leaders(asked: Asked) -> Any:
    """ALTER on the cluster."""
    if not asked.access.may_on_cluster(AclOperation.ALTER):
        return refused_elections(asked.request, _REFUSED, _TEXT)
    return await asked.answer()


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
