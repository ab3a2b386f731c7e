"""Users with SCRAM credentials of a cluster (KIP-554)."""

import asyncio
import secrets

from roster.client.cluster import Cluster, expect
from roster.client.errors import AuthorizationError, BrokerError, UnknownUserError
from roster.client.loop import OnLoop, blocking
from roster.wire import ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from roster.wire.sasl.scram import DEFAULT_ITERATIONS, MECHANISM_NUMBERS, SALT_BYTES, salted_password


class SecurityAdmin(OnLoop):
    """Requests about users, which every broker passes on to the controller."""

    _cluster: Cluster

    @blocking
    async def list_users(self) -> dict[str, dict[str, int]]:
        """Return the users with SCRAM credentials as {user: {mechanism: iterations}}, sorted by name."""
        return await self._users()

    async def _users(self) -> dict[str, dict[str, int]]:
        request = DescribeUserScramCredentialsRequest(users=None)
        response = expect(await self._cluster.request_any(request), DescribeUserScramCredentialsResponse)
        _check(response.error_code, response.error_message, "describe the users", "DESCRIBE")
        names = {number: name for name, number in MECHANISM_NUMBERS.items()}
        return {
            user.user: {names[credential.mechanism]: credential.iterations for credential in user.credential_infos}
            for user in sorted(response.results, key=lambda user: user.user)
        }

    @blocking
    async def set_password(self, user: str, password: str) -> None:
        """Create a user, or change the password; the brokers get its salted hashes, one for each SCRAM mechanism."""
        upsertions = []
        for mechanism, number in MECHANISM_NUMBERS.items():
            salt = secrets.token_bytes(SALT_BYTES)
            upsertions.append(
                AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name=user,
                    mechanism=number,
                    iterations=DEFAULT_ITERATIONS,
                    salt=salt,
                    salted_password=await asyncio.to_thread(
                        salted_password, mechanism, password, salt, DEFAULT_ITERATIONS
                    ),
                )
            )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=upsertions), user)

    @blocking
    async def remove_user(self, user: str) -> None:
        """Delete the credentials of a user; open connections stay.

        Raises:
            UnknownUserError: the user does not exist.
        """
        known = (await self._users()).get(user)
        if known is None:
            raise UnknownUserError(f"there is no user {user!r}")
        deletions = [
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=MECHANISM_NUMBERS[name])
            for name in known
        ]
        await self._alter(AlterUserScramCredentialsRequest(deletions=deletions), user)

    async def _alter(self, request: AlterUserScramCredentialsRequest, user: str) -> None:
        response = expect(await self._cluster.request_any(request), AlterUserScramCredentialsResponse)
        for result in response.results:
            _check(result.error_code, result.error_message, f"change user {user!r}", "ALTER")


def _check(value: int, message: str | None, what: str, right: str) -> None:
    code = error_code(value)
    if code is ErrorCode.NONE:
        return
    text = f"cannot {what}: {message or code.name}"
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise AuthorizationError(f"{text} Grant this client {right} on the cluster.", code=code)
    raise BrokerError(text, code=code)
