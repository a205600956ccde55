"""An issuer of tokens for tests: a key of its own, the set that a broker fetches, signed tokens.

    issuer = TokenIssuer(tmp_path)
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **issuer.broker_settings()}
    with start_broker(settings=settings) as broker:
        client_settings = issuer.client_settings("ada")

Tokens are signed here, too: a broker that takes unsigned ones does not exist. Needs
`pip install magnetar[security]`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{__name__} needs {missing.name}: pip install 'magnetar[security]'", name=missing.name
    ) from None

_ALGORITHM = "ES256"
_HANDLERS = "org.apache.kafka.common.security.oauthbearer"
_LASTS_S = 3600


class TokenIssuer:
    """One issuer. `directory` takes its set of keys, and a file for each user's token."""

    def __init__(
        self, directory: Path, name: str = "https://issuer.test", audience: str = "kafka"
    ) -> None:
        self.name = name
        self.audience = audience
        self.key_set_path = directory / "jwks.json"
        self._directory = directory
        self._number = 0
        self.rotate()

    def rotate(self) -> None:
        """Take a new key, and publish it alone: what the old one has signed holds no more."""
        self._number += 1
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.key_set_path.write_text(self.key_set())

    def key_set(self) -> str:
        """Return the public key as a set of keys (JWKS)."""
        entry = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**entry, "kid": self._key_id, "use": "sig"}]})

    def token(self, user: str, **claims: object) -> str:
        """Return a token of a user, for an hour; `claims` are added, and those of None left out."""
        now_s = int(time.time())
        usual = {
            "sub": user,
            "iss": self.name,
            "aud": self.audience,
            "iat": now_s,
            "exp": now_s + _LASTS_S,
        }
        said = {name: each for name, each in {**usual, **claims}.items() if each is not None}
        return jwt.encode(said, self._key, _ALGORITHM, {"kid": self._key_id})

    def broker_settings(self) -> dict[str, str]:
        """Return what a broker needs to take this issuer's tokens."""
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.key_set_path.as_uri(),
            "sasl.oauthbearer.expected.audience": self.audience,
            "sasl.oauthbearer.expected.issuer": self.name,
        }

    def client_settings(self, user: str, **claims: object) -> dict[str, str]:
        """Return what a client needs to log in as a user, by Kafka's names."""
        path = self._directory / f"{user}.jwt"
        path.write_text(self.token(user, **claims))
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{_HANDLERS}.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": f"{_HANDLERS}.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }

    @property
    def _key_id(self) -> str:
        return f"key-{self._number}"
