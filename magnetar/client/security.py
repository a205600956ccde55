"""How a client connects: TLS, SASL, and the settings that say so, by Kafka's names.

The settings are those of Kafka's clients and tools; the names of librdkafka that differ are taken
as well. Stores are PEM files: Java's own formats are refused with the way out. Other settings of a
client are none of this module's business and ignored.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from magnetar.client.errors import ClientError
from magnetar.client.login import HASHES, OAUTHBEARER, PLAIN
from magnetar.client.token_source import TokenSource, parse_token_source
from magnetar.config.jaas import parse_jaas
from magnetar.config.properties import PropertiesError, parse_properties
from magnetar.config.providers import ProviderFailed, resolved
from magnetar.endpoint import trusting

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
#: librdkafka's name -> Kafka's.
_ALIASES = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
_STORES = ("ssl.truststore", "ssl.keystore")
#: Settings that would have an effect elsewhere. To pass over them would change what they mean.
_NOT_SERVED = ("ssl.keystore.key", "ssl.keystore.certificate.chain")


class BadSettings(ClientError):
    """The settings say nothing that this client can do."""


@dataclass(frozen=True)
class Security:
    """Checked settings; `PLAINTEXT` is the absence of all of them."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    #: PEM files. Without a truststore the system's authorities are trusted.
    truststore: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    #: For OAUTHBEARER, in place of a password. `username` is the client's id then.
    tokens: TokenSource | None = None

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def context(self) -> ssl.SSLContext:
        """Return what TLS connections are made with. BadSettings: a file cannot be read.

        The files are read each time: a renewed certificate holds for the next connection.
        """
        for path in filter(None, (self.truststore, self.certificate, self.key)):
            if not os.access(path, os.R_OK):
                raise BadSettings(f"cannot read {path}.")
        try:
            context = trusting(self.truststore or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key, self.key_password)
        except (ssl.SSLError, OSError) as error:
            files = ", ".join(filter(None, (self.truststore, self.certificate, self.key)))
            raise BadSettings(
                f"{files}: not PEM, or key, certificate and ssl.key.password do not fit"
                f" ({error.strerror or error})."
            ) from None
        context.check_hostname = self.checks_host
        return context

    def for_librdkafka(self) -> dict[str, str]:
        """Return the same settings by librdkafka's names. BadSettings: it cannot have them."""
        settings = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.truststore,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": "" if self.checks_host else "none",
        }
        if self.tokens is not None:
            del settings["sasl.username"]
            try:
                settings |= self.tokens.for_librdkafka()
            except ValueError as mistake:
                raise BadSettings(f"{mistake}.") from None
        return {name: value for name, value in settings.items() if value}


PLAINTEXT = Security()


def parse_security(settings: Mapping[str, str]) -> Security:
    """Return what the settings of a client say of security. Raises BadSettings."""
    given = {_ALIASES.get(name, name): value for name, value in settings.items()}
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise BadSettings(f"security.protocol is {protocol}: there are {', '.join(_PROTOCOLS)}.")
    for name in _NOT_SERVED:
        if name in given:
            raise BadSettings(f"{name} is not served: put key and certificate into a PEM file.")
    for store in _STORES:
        _check_pem(store, given)
    keystore = given.get("ssl.keystore.location", "")
    certificate = given.get("ssl.certificate.location", keystore)
    security = Security(
        protocol,
        truststore=given.get("ssl.truststore.location", ""),
        certificate=certificate,
        key=given.get("ssl.key.location", keystore or certificate),
        key_password=given.get("ssl.key.password", ""),
        checks_host=given.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
    )
    return _with_login(security, given) if security.has_sasl else security


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a .properties file, as Kafka's tools take it. Raises BadSettings."""
    try:
        text = path.read_text(encoding="utf-8")
        return {name: value for _, name, value in parse_properties(text)}
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}.") from None
    except (UnicodeDecodeError, PropertiesError) as error:
        raise BadSettings(f"{path}: {error}.") from None


def with_providers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the values of their `config.providers`. Raises BadSettings."""
    try:
        return resolved(settings)
    except ProviderFailed as failed:
        raise BadSettings(f"{failed}.") from None


def _with_login(security: Security, given: Mapping[str, str]) -> Security:
    mechanism = given.get("sasl.mechanism", "").upper()
    if mechanism not in _MECHANISMS:
        named = f"is {mechanism}" if mechanism else "is missing"
        raise BadSettings(f"sasl.mechanism {named}: there are {', '.join(_MECHANISMS)}.")
    try:
        options = parse_jaas(given["sasl.jaas.config"]) if "sasl.jaas.config" in given else {}
    except ValueError as mistake:
        raise BadSettings(f"sasl.jaas.config {mistake}.") from None
    if mechanism == OAUTHBEARER:
        return _with_tokens(security, given, options)
    if options.get("tokenauth", "").lower() == "true":
        # Said here: as a user's name the token's id would only be a failed login.
        raise BadSettings("sasl.jaas.config: tokenauth is not served: log in as a user.")
    username = given.get("sasl.username", options.get("username", ""))
    password = given.get("sasl.password", options.get("password", ""))
    if not username or not password:
        raise BadSettings(
            f"{security.protocol} needs sasl.username and sasl.password, or sasl.jaas.config."
        )
    return replace(security, mechanism=mechanism, username=username, password=password)


def _with_tokens(
    security: Security, given: Mapping[str, str], options: Mapping[str, str]
) -> Security:
    try:
        tokens = parse_token_source(given, options)
    except ValueError as mistake:
        raise BadSettings(f"{mistake}.") from None
    if tokens.authorities and not os.access(tokens.authorities, os.R_OK):
        raise BadSettings(f"cannot read {tokens.authorities}.")
    username = tokens.client_id or str(tokens.endpoint)
    return replace(security, mechanism=OAUTHBEARER, username=username, tokens=tokens)


def _check_pem(store: str, given: Mapping[str, str]) -> None:
    location = given.get(f"{store}.location")
    # Java's default is JKS, but a truststore of librdkafka has no type: the file's name tells then.
    kind = given.get(f"{store}.type", "").upper()
    is_javas = Path(location or "").suffix.lower() in (".jks", ".p12", ".pfx")
    if location is not None and (kind not in ("", "PEM") or is_javas):
        raise BadSettings(
            f"{store}.location is {location}, and this client reads PEM alone. `openssl pkcs12 -in"
            " FILE.p12 -out FILE.pem -nodes` converts PKCS12; `keytool -importkeystore -srckeystore"
            " FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12` makes that of JKS."
        )
