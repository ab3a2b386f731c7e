"""Rights that requests need about the cluster: users, ACLs, requests of tools."""

from roster.broker.gate.gated_request import Gate, GatedRequest, requires
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message
from roster.wire.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = "Cluster authorization failed."


async def anyone(gated: GatedRequest[Message, Message]) -> Message:
    """No right is needed; the contents of the response depend on rights."""
    return await gated.answer()


def _needs(operation: AclOperation) -> Gate:
    """Return the gate of requests that need an operation on the cluster."""
    return requires(lambda access, _: access.may_on_cluster(operation), _REFUSED)


describe = _needs(AclOperation.DESCRIBE)
alter = _needs(AclOperation.ALTER)


async def alter_users(gated: GatedRequest[AlterUserScramCredentialsRequest, Message]) -> Message:
    """ALTER on the cluster."""
    if gated.access.may_on_cluster(AclOperation.ALTER):
        return await gated.answer()
    deleted, set_ = gated.request.deletions, gated.request.upsertions
    names = dict.fromkeys([*(change.name for change in deleted), *(change.name for change in set_)])
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        results=[result(user=name, error_code=_REFUSED, error_message=_TEXT) for name in names]
    )
