"""Errors of security settings and of logging in; none holds a secret."""

from roster._errors import RosterError


class SettingError(RosterError, ValueError):
    """A setting is unknown, wrong or contradicts another: `key` is its name, `fix` says what to write."""

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"{key}: {problem}; {fix}")
        self.key, self.problem, self.fix = key, problem, fix


class AuthenticationFailed(RosterError):  # the client's AuthenticationError is what callers see
    """The broker refused this client, or cannot be trusted: trying again does not help."""
