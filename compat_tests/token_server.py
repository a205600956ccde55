"""An issuer of tokens on this machine: its keys at /jwks, and tokens at /token for who has the
secret. Its tokens may lie in every way.
"""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
CLIENT, SECRET = "ada", "secret of ada"
LASTS_S = 3600


class TokenServer:
    """The server, from the moment that it is made until `stop`."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._stranger = rsa.generate_private_key(65537, 2048)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, server.key_set())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                credentials = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if self.headers["Authorization"] != f"Basic {credentials}":
                    self._answer(401, {"error": "invalid_client"})
                    return
                token = {"access_token": server.token(), "token_type": "Bearer"}
                self._answer(200, {**token, "scope": "kafka", "expires_in": LASTS_S})

            def _answer(self, status: int, said: dict[str, Any]) -> None:
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def key_set(self) -> dict[str, Any]:
        public = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": "a", "use": "sig", "alg": "RS256"}]}

    def token(self, *, forged: bool = False, key_id: str = "a", **claims: Any) -> str:
        """Return a token of ada; `claims` are added, those of None left out."""
        key = self._stranger if forged else self._key
        return jwt.encode(self._claims(claims), key, "RS256", {"kid": key_id})

    def unsigned_token(self) -> str:
        return jwt.encode(self._claims({}), "", "none", {"kid": "a"})

    def token_by_public_key(self) -> str:
        """Return a token signed by HMAC, whose secret is the public key that everyone has."""
        secret = self._key.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        head, said = ({"alg": "HS256", "kid": "a"}, self._claims({}))
        signed = ".".join(_segment(json.dumps(part).encode()) for part in (head, said))
        return f"{signed}.{_segment(hmac.digest(secret, signed.encode(), 'sha256'))}"

    def _claims(self, changes: dict[str, Any]) -> dict[str, Any]:
        now_s = int(time.time())
        usual = {"sub": CLIENT, "iss": ISSUER, "aud": AUDIENCE, "scope": "kafka"}
        times = {"iat": now_s, "exp": now_s + LASTS_S}
        merged = {**usual, **times, **changes}
        return {name: value for name, value in merged.items() if value is not None}


def _segment(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
