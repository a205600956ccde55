"""Users of SCRAM as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.security.scram import USUAL_SHAPE, ScramCredential, TokenLogin, decoy

SECRET = b"the broker's own"


@dataclass
class ScramUsersOf:
    """Those who may log in by one mechanism: users and tokens by name."""

    mechanism: str
    users: Mapping[str, ScramCredential]
    tokens: Mapping[str, TokenLogin] = field(default_factory=dict)

    def find(self, name: str) -> ScramCredential | None:
        return self.users.get(name)

    def find_token(self, token_id: str, now_ms: int) -> TokenLogin | None:
        found = self.tokens.get(token_id)
        return found if found is not None and now_ms <= found.expires_at_ms else None

    def decoy(self, name: str) -> ScramCredential:
        return decoy(self.mechanism, name, SECRET, USUAL_SHAPE)
