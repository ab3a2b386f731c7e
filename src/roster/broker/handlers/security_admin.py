"""ACLs and users: DescribeAcls, CreateAcls, DeleteAcls (KIP-140), SCRAM credentials (KIP-554), and the login itself."""

import logging
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from roster.broker.call import Call
from roster.broker.errors import RefusedError, explain, refusing
from roster.broker.security.store import Users
from roster.broker.services import Services
from roster.model.acl import CLUSTER_NAME, AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from roster.wire.sasl.mechanism import SaslError
from roster.wire.sasl.scram import LEAST_ITERATIONS, MECHANISM_NUMBERS, MOST_STORED_ITERATIONS, ScramCredential

MAX_ACLS = 100_000
MAX_USERS = 100_000
_NO_AUTHORIZER = "No Authorizer is configured."
_PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
_PERMISSIONS = (AclPermission.DENY, AclPermission.ALLOW)
_RESOURCES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)

E = TypeVar("E", bound=IntEnum)
_pattern_of = attrgetter("resource_type", "resource_name", "pattern_type")
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

logger = logging.getLogger(__name__)


async def sasl_handshake(_services: Services, call: Call[SaslHandshakeRequest]) -> Message:
    """Begin a login, or its renewal."""
    return call.session.handshake(call.message, call.version)


async def sasl_authenticate(_services: Services, call: Call[SaslAuthenticateRequest]) -> Message:
    """Take the next message of a login."""
    return await call.session.authenticate(call.message)


# ACLs


async def describe_acls(services: Services, call: Call[DescribeAclsRequest]) -> Message:
    """Return the ACLs that a filter matches, by resource pattern."""
    response = DescribeAclsResponse(error_message=None)
    with refusing(response):
        wanted = _filter(services, call.message)
        matching = sorted(acl for acl in services.security.store.acls if wanted.matches(acl))
        resource = DescribeAclsResponse.Resource
        for (kind, name, pattern), acls in groupby(matching, _pattern_of):
            described = [
                resource.AclDescription(
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
                )
                for acl in acls
            ]
            named = resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=described)
            response.resources.append(named)
    return response


async def create_acls(services: Services, call: Call[CreateAclsRequest]) -> Message:
    """Create ACLs; existing ones are left as they are."""
    results = [CreateAclsResponse.AclCreationResult(error_message=None) for _ in call.message.creations]
    added: dict[int, AclBinding] = {}
    for number, creation in enumerate(call.message.creations):
        with refusing(results[number]):
            added[number] = _new_acl(services, creation)
    try:
        await services.security.store.change(lambda _users, acls: _add(acls, added.values()))
    except (RefusedError, OSError) as error:
        for number in added:
            results[number].error_code, results[number].error_message = explain(error, "users or ACLs")
    else:
        for acl in added.values():
            logger.info("%s created the ACL %s", call.access.principal, _shown(acl))
    return CreateAclsResponse(results=results)


def _add(acls: set[AclBinding], added: Iterable[AclBinding]) -> None:
    acls.update(added)
    if len(acls) > MAX_ACLS:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"there would be more than {MAX_ACLS} ACLs")


def _new_acl(services: Services, creation: CreateAclsRequest.AclCreation) -> AclBinding:
    """Return the ACL to create; RefusedError for one that cannot be."""
    _require_authorizer(services)
    kind = _one_of(ResourceType, creation.resource_type, _RESOURCES, "resource type")
    pattern = _one_of(PatternType, creation.resource_pattern_type, _PATTERNS, "pattern type")
    operations = [operation for operation in AclOperation if operation > AclOperation.ANY]
    operation = _one_of(AclOperation, creation.operation, operations, "operation")
    permission = _one_of(AclPermission, creation.permission_type, _PERMISSIONS, "permission")
    if not creation.resource_name:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Resource name should not be empty")
    if kind is ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in creation.principal:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"principal {creation.principal!r} is not TYPE:NAME, as in User:rita"
        )
    if not creation.host:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the host is empty; * stands for all")
    return AclBinding(kind, creation.resource_name, pattern, creation.principal, creation.host, operation, permission)


async def delete_acls(services: Services, call: Call[DeleteAclsRequest]) -> Message:
    """Delete the ACLs that filters match, and return them."""
    results = []
    wanted: list[AclFilter | None] = []
    for acl_filter in call.message.filters:
        result = DeleteAclsResponse.DeleteAclsFilterResult(error_message=None)
        results.append(result)
        wanted.append(None)
        with refusing(result):
            wanted[-1] = _filter(services, acl_filter)
    matched: list[list[AclBinding]] = []

    def remove(_users: Users, acls: set[AclBinding]) -> None:
        matched[:] = [
            sorted(acl for acl in acls if acl_filter.matches(acl)) if acl_filter else [] for acl_filter in wanted
        ]
        acls.difference_update(acl for matching in matched for acl in matching)

    try:
        await services.security.store.change(remove)
    except OSError as error:
        for result in results:
            result.error_code, result.error_message = explain(error, "users or ACLs")
        return DeleteAclsResponse(filter_results=results)
    for result, deleted in zip(results, matched, strict=True):
        result.matching_acls = [_deleted(acl) for acl in deleted]
        for acl in deleted:
            logger.info("%s deleted the ACL %s", call.access.principal, _shown(acl))
    return DeleteAclsResponse(filter_results=results)


def _deleted(acl: AclBinding) -> DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsFilterResult.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _filter(services: Services, wanted: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    _require_authorizer(services)
    known = [kind for kind in ResourceType if kind is not ResourceType.UNKNOWN]
    return AclFilter(
        _one_of(ResourceType, wanted.resource_type_filter, known, "resource type"),
        wanted.resource_name_filter,
        _one_of(PatternType, wanted.pattern_type_filter, [p for p in PatternType if p], "pattern type"),
        wanted.principal_filter,
        wanted.host_filter,
        _one_of(AclOperation, wanted.operation, [o for o in AclOperation if o], "operation"),
        _one_of(AclPermission, wanted.permission_type, [p for p in AclPermission if p], "permission"),
    )


def _one_of(kind: type[E], value: int, allowed: Iterable[E], what: str) -> E:
    if value not in [int(number) for number in allowed]:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{value} is not a valid {what}")
    return kind(value)


def _require_authorizer(services: Services) -> None:
    if services.security.authorizer is None:
        raise RefusedError(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)


def _shown(acl: AclBinding) -> str:
    where = f"{acl.resource_type.name} {acl.pattern_type.name} {acl.resource_name!r}"
    return f"{acl.permission.name} {acl.principal} from {acl.host}: {acl.operation.name} on {where}"


# Users


async def describe_users(services: Services, call: Call[DescribeUserScramCredentialsRequest]) -> Message:
    """Return the mechanisms of users, all or those asked for."""
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    users = services.security.store.users
    times = Counter(user.name for user in call.message.users or ()) or Counter(dict.fromkeys(sorted(users), 1))
    response = DescribeUserScramCredentialsResponse(error_message=None)
    for name, count in times.items():
        answer = result(user=name, error_message=None)
        response.results.append(answer)
        if count > 1:
            answer.error_code = ErrorCode.DUPLICATE_RESOURCE
            answer.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            )
        elif name not in users:
            answer.error_code = ErrorCode.RESOURCE_NOT_FOUND
            answer.error_message = f"Attempt to describe a user credential that does not exist: {name}"
        else:
            answer.credential_infos = [
                result.CredentialInfo(mechanism=number, iterations=users[name][mechanism].iterations)
                for mechanism, number in MECHANISM_NUMBERS.items()
                if mechanism in users[name]
            ]
    return response


async def alter_users(services: Services, call: Call[AlterUserScramCredentialsRequest]) -> Message:
    """Set and delete credentials; errors are per user."""
    request = call.message
    changes: list[Deletion | Upsertion] = [*request.deletions, *request.upsertions]
    twice = {key for key, count in Counter((change.name, change.mechanism) for change in changes).items() if count > 1}
    outcomes: dict[str, tuple[ErrorCode, str | None]] = {change.name: (ErrorCode.NONE, None) for change in changes}

    def apply(users: Users, _acls: object) -> None:
        for change in changes:
            if outcomes[change.name][0]:
                continue
            try:
                if (change.name, change.mechanism) in twice:
                    raise RefusedError(
                        ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                    )
                _alter(users, change)
            except RefusedError as refusal:
                outcomes[change.name] = refusal.code, str(refusal)

    try:
        await services.security.store.change(apply)
    except OSError as error:
        outcomes = dict.fromkeys(outcomes, explain(error, "users or ACLs"))
    for name, (code, _) in outcomes.items():
        if not code:
            logger.info("%s changed the credentials of user %r", call.access.principal, name)
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        results=[result(user=name, error_code=code, error_message=text) for name, (code, text) in outcomes.items()]
    )


def _alter(users: Users, change: Deletion | Upsertion) -> None:
    mechanism = next((name for name, number in MECHANISM_NUMBERS.items() if number == change.mechanism), None)
    if not change.name:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Deletion):
        if mechanism not in users.get(change.name, {}):
            raise RefusedError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        del users[change.name][mechanism]
        return
    if not LEAST_ITERATIONS <= change.iterations <= MOST_STORED_ITERATIONS:
        few = "few" if change.iterations < LEAST_ITERATIONS else "many"
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {few} iterations")
    if len(users) >= MAX_USERS and change.name not in users:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"there are {MAX_USERS} users already")
    if not change.salted_password:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salted password must not be empty")
    try:
        credential = ScramCredential.of_salted(mechanism, change.salted_password, change.salt, change.iterations)
    except SaslError as error:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    users.setdefault(change.name, {})[mechanism] = credential
