"""Delegation tokens: kept in the catalog, held in memory, found by id and by HMAC (KIP-48)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from magnetar.config.broker import BrokerConfig
from magnetar.config.tokens import TokensConfig
from magnetar.security.principal import Principal
from magnetar.security.scram import HASHES, ScramCredential
from magnetar.security.tokens import Lifetimes, Token, token_credential, token_hmac
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TokenRow
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Most tokens, and most that one user may ask for: all of them are held in memory.
TOKENS_MAX = 100_000
TOKENS_OF_ONE_MAX = 10_000


class DelegationTokens:
    """The tokens of a broker that has a secret for them."""

    def __init__(self, catalog: Catalog, secret: bytes, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self._catalog = catalog
        self._secret = secret
        #: Made at a token's first login by a mechanism: each takes 1 to 2.5 ms.
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        self._tokens: dict[str, Token] = {}
        #: The id of each token by what proves it.
        self._ids: dict[bytes, str] = {}
        #: How many tokens each user has asked for.
        self._counts: Counter[Principal] = Counter()
        self.reload()

    def reload(self, *ids: str) -> None:
        """Read tokens again, or all of them: another node may have changed them."""
        stored = {row[0]: _token(row) for row in self._catalog.delegation_tokens(*ids)}
        for each in ids or [*self._tokens]:
            if each not in stored:
                self._forget(each)
        for token in stored.values():
            self._keep(token)

    def all(self) -> list[Token]:
        """Return every token."""
        return list(self._tokens.values())

    def hmac(self, token: Token) -> bytes:
        """Return what proves a token, its password before base64."""
        return token_hmac(self._secret, token.id)

    def proven(self, hmac: bytes) -> Token:
        """Return the token that an HMAC proves. Raises DELEGATION_TOKEN_NOT_FOUND."""
        token_id = self._ids.get(hmac)
        if token_id is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")
        return self._tokens[token_id]

    def good(self, token_id: str, now_ms: int) -> Token | None:
        """Return the token of an id, unless it has expired."""
        token = self._tokens.get(token_id)
        return token if token is not None and token.is_good(now_ms) else None

    def credential(self, token: Token, mechanism: str) -> ScramCredential:
        """Return what a login by a token is compared with."""
        key = token.id, mechanism
        made = self._credentials.get(key)
        if made is None:
            made = self._credentials[key] = token_credential(self._secret, token.id, mechanism)
        return made

    def put(self, token: Token) -> None:
        """Keep a token, durably: a new one, or one whose time has changed.

        Raises POLICY_VIOLATION for one too many, DELEGATION_TOKEN_NOT_FOUND for one that another
        node has removed meanwhile.
        """
        # The catalog first: memory never says what the disk might not have.
        if token.id not in self._tokens:
            self._check_room(token)
            self._catalog.add_delegation_token(_row(token))
        elif not self._catalog.set_token_expiry(token.id, token.expires_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "the token has been removed")
        self._keep(token)

    def _check_room(self, token: Token) -> None:
        if len(self._tokens) >= TOKENS_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"there are {TOKENS_MAX} tokens")
        if self._counts[token.requester] >= TOKENS_OF_ONE_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{token.requester} has asked for {TOKENS_OF_ONE_MAX} tokens that are not over",
            )

    def remove(self, tokens: Iterable[Token]) -> None:
        """Forget tokens, durably and all at once."""
        removed = list(tokens)
        self._catalog.remove_delegation_tokens([token.id for token in removed])
        for token in removed:
            self._forget(token.id)

    def remove_expired(self, tokens: Sequence[Token], now_ms: int) -> list[str]:
        """Forget tokens that are over, durably and all at once; return their ids.

        One that another node has renewed stays: this node reads of that soon.
        """
        removed = self._catalog.remove_expired_tokens([token.id for token in tokens], now_ms)
        for token_id in removed:
            self._forget(token_id)
        return removed

    def _keep(self, token: Token) -> None:
        if token.id not in self._tokens:
            self._counts[token.requester] += 1
            self._ids[self.hmac(token)] = token.id
        self._tokens[token.id] = token

    def _forget(self, token_id: str) -> None:
        token = self._tokens.pop(token_id, None)
        if token is None:
            return
        del self._ids[self.hmac(token)]
        self._counts[token.requester] -= 1
        # Users come and go: a count of none would stay for ever.
        if not self._counts[token.requester]:
            del self._counts[token.requester]
        for mechanism in HASHES:
            self._credentials.pop((token_id, mechanism), None)

    def expired(self, now_ms: int) -> list[Token]:
        """Return the tokens that are good no more."""
        return [token for token in self._tokens.values() if not token.is_good(now_ms)]


def load_tokens(config: BrokerConfig, catalog: Catalog) -> DelegationTokens | None:
    """Return the tokens, where the settings have a secret for them."""
    settings = config.view(TokensConfig)
    if not settings.delegation_token_secret_key:
        return None
    lifetimes = Lifetimes(
        settings.delegation_token_max_lifetime_ms, settings.delegation_token_expiry_time_ms
    )
    return DelegationTokens(catalog, settings.delegation_token_secret_key.encode(), lifetimes)


def _row(token: Token) -> TokenRow:
    # As JSON, since a name may have any character.
    renewers = json.dumps(token.renewers)
    times = token.issued_ms, token.expires_ms, token.ends_ms
    return token.id, *token.owner, *token.requester, renewers, *times


def _token(row: TokenRow) -> Token:
    token_id, owner_type, owner, requester_type, requester, renewers, *times = row
    return Token(
        token_id,
        Principal(owner_type, owner),
        Principal(requester_type, requester),
        tuple(Principal(*each) for each in json.loads(renewers)),
        *times,
    )
