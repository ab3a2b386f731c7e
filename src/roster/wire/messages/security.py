"""Users and their SCRAM credentials (KIP-554); ACLs by the numbers of `roster.model.acl` (KIP-140, KIP-290)."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, bytes_, int8, int16, int32, string
from roster.wire.codec.table import Message, Struct


class DescribeUserScramCredentialsRequest(
    Message, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"
):
    """Ask which users have which mechanisms; None or an empty list asks for all users."""

    class UserName(Struct):
        name: str = string()

    users: list[UserName] | None = array(UserName, nullable="0+")


class DescribeUserScramCredentialsResponse(
    Message, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"
):
    """Mechanisms and iterations of each user; no salt and no hash."""

    class DescribeUserScramCredentialsResult(Struct):
        class CredentialInfo(Struct):
            mechanism: int = int8()
            iterations: int = int32()

        user: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+")
        credential_infos: list[CredentialInfo] = array(CredentialInfo)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


class AlterUserScramCredentialsRequest(Message, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"):
    """Set and delete credentials; the password itself does not travel, but what logs in with SCRAM does."""

    class ScramCredentialDeletion(Struct):
        name: str = string()
        mechanism: int = int8()

    class ScramCredentialUpsertion(Struct):
        name: str = string()
        mechanism: int = int8()
        iterations: int = int32()
        salt: bytes = bytes_()
        salted_password: bytes = bytes_()

        def __repr__(self) -> str:
            return f"ScramCredentialUpsertion(name={self.name!r}, mechanism={self.mechanism}, ...)"

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResponse(Message, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0", flexible="0+"):
    """One result per user."""

    class AlterUserScramCredentialsResult(Struct):
        user: str = string()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+")

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


_LITERAL = 3


class DescribeAclsRequest(Message, key=ApiKey.DESCRIBE_ACLS, versions="1-3", flexible="2+"):
    """Ask for the ACLs that a filter matches; None matches any name, principal or host."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8("1+", default=_LITERAL)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResponse(Message, key=ApiKey.DESCRIBE_ACLS, versions="1-3", flexible="2+"):
    """The ACLs by the resource pattern they are for."""

    class Resource(Struct):
        class AclDescription(Struct):
            """Principal, host, operation and permission."""

            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        resource_type: int = int8()
        resource_name: str = string()
        pattern_type: int = int8("1+", default=_LITERAL)
        acls: list[AclDescription] = array(AclDescription)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resources: list[Resource] = array(Resource)


class CreateAclsRequest(Message, key=ApiKey.CREATE_ACLS, versions="1-3", flexible="2+"):
    """Create ACLs."""

    class AclCreation(Struct):
        resource_type: int = int8()
        resource_name: str = string()
        resource_pattern_type: int = int8("1+", default=_LITERAL)
        principal: str = string()
        host: str = string()
        operation: int = int8()
        permission_type: int = int8()

    creations: list[AclCreation] = array(AclCreation)


class CreateAclsResponse(Message, key=ApiKey.CREATE_ACLS, versions="1-3", flexible="2+"):
    """One result per ACL, in their order."""

    class AclCreationResult(Struct):
        """The outcome for one ACL."""

        error_code: int = int16()
        error_message: str | None = string(nullable="0+")

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


class DeleteAclsRequest(Message, key=ApiKey.DELETE_ACLS, versions="1-3", flexible="2+"):
    """Delete the ACLs that filters match."""

    class DeleteAclsFilter(Struct):
        """One filter, as of DescribeAcls."""

        resource_type_filter: int = int8()
        resource_name_filter: str | None = string(nullable="0+")
        pattern_type_filter: int = int8("1+", default=_LITERAL)
        principal_filter: str | None = string(nullable="0+")
        host_filter: str | None = string(nullable="0+")
        operation: int = int8()
        permission_type: int = int8()

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsResponse(Message, key=ApiKey.DELETE_ACLS, versions="1-3", flexible="2+"):
    """The ACLs that each filter deleted, in the order of the filters."""

    class DeleteAclsFilterResult(Struct):
        """The ACLs that one filter matched, or an error."""

        class DeleteAclsMatchingAcl(Struct):
            error_code: int = int16()
            error_message: str | None = string(nullable="0+")
            resource_type: int = int8()
            resource_name: str = string()
            pattern_type: int = int8("1+", default=_LITERAL)
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        error_code: int = int16()
        error_message: str | None = string(nullable="0+")
        matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
