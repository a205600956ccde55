"""Those who may log in by one mechanism of SCRAM: users of the catalog, and delegation tokens."""

from __future__ import annotations

from magnetar.security.scram import ScramCredential, TokenLogin
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.scram_credentials import ScramCredentials


class ScramUsers:
    """The users of one mechanism; `tokens` is None where there are none."""

    def __init__(
        self, mechanism: str, credentials: ScramCredentials, tokens: DelegationTokens | None
    ) -> None:
        self.mechanism = mechanism
        self._credentials = credentials
        self._tokens = tokens

    def find(self, name: str) -> ScramCredential | None:
        """Return a user's credential, where there is one."""
        return self._credentials.find(name, self.mechanism)

    def find_token(self, token_id: str, now_ms: int) -> TokenLogin | None:
        """Return what is known of a delegation token that has not expired."""
        token = None if self._tokens is None else self._tokens.good(token_id, now_ms)
        if token is None or self._tokens is None:
            return None
        credential = self._tokens.credential(token, self.mechanism)
        return TokenLogin(credential, token.owner, token.expires_ms)

    def decoy(self, name: str) -> ScramCredential:
        """Return the credential of a user that does not exist: always the same for one name."""
        return self._credentials.decoy(name, self.mechanism)
