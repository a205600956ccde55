"""Where a client's tokens come from (OAUTHBEARER): a file, or an issuer's token endpoint.

The endpoint is asked by the grant of client credentials (RFC 6749, KIP-768). The names of the
settings are Kafka's; librdkafka's for the same things are taken as well.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from magnetar.client.errors import ClientError
from magnetar.endpoint import (
    Endpoint,
    EndpointFailed,
    parse_endpoint,
    read_endpoint,
    trusting,
)

_NAME = "sasl.oauthbearer"
_URL = f"{_NAME}.token.endpoint.url"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
#: What these may say: Kafka's other classes, and librdkafka's other ways, do something else.
_KNOWN = {
    "sasl.login.callback.handler.class": (
        f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
        f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
    ),
    f"{_NAME}.jwt.retriever.class": (
        f"{_PACKAGE}.DefaultJwtRetriever",
        f"{_PACKAGE}.ClientCredentialsJwtRetriever",
        f"{_PACKAGE}.FileJwtRetriever",
    ),
    f"{_NAME}.method": ("oidc",),
    f"{_NAME}.grant.type": ("client_credentials",),
}
_NOT_SERVED = (f"{_NAME}.assertion.", f"{_NAME}.metadata.")
#: librdkafka's name -> Kafka's.
_ALIASES = {
    f"{_NAME}.client.id": f"{_NAME}.client.credentials.client.id",
    f"{_NAME}.client.secret": f"{_NAME}.client.credentials.client.secret",
}
_JAAS_EXTENSION = "extension_"
_EXTENSION = re.compile(r"[A-Za-z]+=[!-~ \t\r\n]+")
_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
#: A token is used for this share of its life: the broker's clock may be ahead.
_USED_FOR = 0.8


@dataclass(frozen=True)
class TokenSource:
    """Checked settings; `token` does the work."""

    endpoint: Endpoint
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    #: PEM file; empty: the system's authorities are trusted.
    authorities: str = ""
    #: What the broker is told besides, as NAME=VALUE.
    extensions: tuple[str, ...] = ()
    encodes_credentials: bool = False
    #: The newest token, and until when by the monotonic clock it is used.
    _kept: list[tuple[str, float]] = field(default_factory=list, repr=False, compare=False)

    def token(self) -> str:
        """Return a token that holds for a while yet. Raises ClientError. Blocks."""
        if self._kept and time.monotonic() < self._kept[0][1]:
            return self._kept[0][0]
        try:
            answer = self._ask()
        except EndpointFailed as failed:
            raise ClientError(f"there is no token: {failed}{_said(failed.body)}.") from None
        token, lasts_s = (answer.decode("latin-1"), 0.0)
        if not self.endpoint.is_file:
            token, lasts_s = _parse(self.endpoint, answer)
        token = token.strip()
        if _TOKEN.fullmatch(token) is None:
            raise ClientError(f"there is no token: what {self.endpoint} holds is none.")
        self._kept[:] = [(token, time.monotonic() + lasts_s * _USED_FOR)]
        return token

    def for_librdkafka(self) -> dict[str, str]:
        """Return the same settings by librdkafka's names. ValueError: it takes none of a file."""
        if self.endpoint.is_file:
            raise ValueError(f"{_URL} is a file, and librdkafka takes no token from a file")
        return {
            f"{_NAME}.method": "oidc",
            f"{_NAME}.client.id": self.client_id,
            f"{_NAME}.client.secret": self.client_secret,
            _URL: self.endpoint.url,
            f"{_NAME}.scope": self.scope,
            f"{_NAME}.extensions": ",".join(self.extensions),
            "https.ca.location": self.authorities,
        }

    def _ask(self) -> bytes:
        if self.endpoint.is_file:
            return read_endpoint(self.endpoint, self._context)
        credentials = [self.client_id, self.client_secret]
        if self.encodes_credentials:
            credentials = [quote(each, safe="") for each in credentials]
        form = {"grant_type": "client_credentials", "scope": self.scope}
        headers = {
            "Authorization": f"Basic {b64encode(':'.join(credentials).encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode({name: value for name, value in form.items() if value}).encode()
        return read_endpoint(self.endpoint, self._context, headers, body)

    def _context(self) -> ssl.SSLContext:
        return trusting(self.authorities or None)


def parse_token_source(given: Mapping[str, str], options: Mapping[str, str]) -> TokenSource:
    """Return where the settings say that tokens are; `options` are those of the JAAS entry.

    Raises ValueError, whose text is a sentence without its end.
    """
    named = {_ALIASES.get(name, name): value for name, value in given.items()}
    for name, known in _KNOWN.items():
        if named.get(name, known[0]) not in known:
            raise ValueError(f"{name} is {named[name]}, and only {known[0]} is served")
    for name in named:
        if name.startswith(_NOT_SERVED):
            raise ValueError(f"{name} is not served: a client has an id and a secret here")
    if _URL not in named:
        raise ValueError(
            f"{_URL} is missing: the address of the issuer's token endpoint, or file: and a path"
        )
    try:
        endpoint = parse_endpoint(named[_URL])
    except ValueError as mistake:
        raise ValueError(f"{_URL} {mistake}") from None
    client = f"{_NAME}.client.credentials.client"
    source = TokenSource(
        endpoint,
        named.get(f"{client}.id", options.get("clientId", "")),
        named.get(f"{client}.secret", options.get("clientSecret", "")),
        named.get(f"{_NAME}.scope", options.get("scope", "")),
        named.get("https.ca.location", options.get("ssl.truststore.location", "")),
        tuple(_extensions(named, options)),
        named.get(f"{_NAME}.header.urlencode", "false").strip().lower() == "true",
    )
    if not endpoint.is_file and not (source.client_id and source.client_secret):
        raise ValueError(f"{client}.id and {client}.secret are missing: who asks for the token")
    return source


def _extensions(named: Mapping[str, str], options: Mapping[str, str]) -> Iterator[str]:
    """Yield the extensions of the JAAS entry, and those of librdkafka's list."""
    pairs = [
        f"{name.removeprefix(_JAAS_EXTENSION)}={value}"
        for name, value in options.items()
        if name.startswith(_JAAS_EXTENSION)
    ]
    listed = named.get(f"{_NAME}.extensions", "")
    for pair in [*pairs, *filter(None, listed.split(","))]:
        if _EXTENSION.fullmatch(pair) is None or pair.startswith("auth="):
            raise ValueError(f"{pair.partition('=')[0]} is no SASL extension that can be sent")
        yield pair


def _parse(endpoint: Endpoint, answer: bytes) -> tuple[str, float]:
    """Return the token of an answer, and for how many seconds it holds; 0 where that is unsaid."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        token = said.get("access_token") or said.get("id_token")
        lasts_s = said.get("expires_in", 0)
        if isinstance(token, str):
            return token, float(lasts_s) if isinstance(lasts_s, int | float) else 0.0
    raise ClientError(f"there is no token: {endpoint} answers no access_token in JSON.")


def _said(body: bytes) -> str:
    """Return what an issuer says of its refusal (RFC 6749, section 5.2)."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(said, dict):
        return ""
    words = (said.get(name) for name in ("error", "error_description"))
    return "".join(f": {word}" for word in words if isinstance(word, str))
