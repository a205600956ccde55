"""The settings of a listener's security: Kafka's names, for all listeners or for one.

`listener.name.LISTENER.NAME` gives a setting for one listener, and
`listener.name.LISTENER.MECHANISM.NAME` for one SASL mechanism of it; both names in lower case.
"""

from __future__ import annotations

from enum import StrEnum

from magnetar.config.oauthbearer import OAuthBearerConfig
from magnetar.config.providers import ProvidersConfig
from magnetar.config.quotas import LISTENER_PREFIX, OF_LISTENERS
from magnetar.config.setting import (
    Config,
    ConfigType,
    Setting,
    Table,
    boolean,
    empty_words,
    integer,
    long,
    optional_string,
    string,
    words,
)

#: What may differ between the mechanisms of one listener.
_OF_MECHANISMS = {"sasl.jaas.config", "connections.max.reauth.ms", *OAuthBearerConfig.settings}


class SecurityProtocol(StrEnum):
    """What a listener speaks beneath Kafka's protocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def password(*, doc: str, since: str) -> Setting[str | None]:
    """Declare a secret text: accepted, never shown."""

    def parse(text: str) -> str | None:
        return text

    return Setting(ConfigType.PASSWORD, parse, None, doc=doc, since=since)


class ListenersConfig(Config):
    """The addresses of a broker."""

    listeners = words(
        ["PLAINTEXT://127.0.0.1:9092"],
        since="0.8.3",
        doc="Addresses to listen on, NAME://host:port. Default differs from Kafka's, which listens"
        " on every interface: a broker without authentication should be asked to.",
    )
    advertised_listeners = words(
        [],
        since="0.8.3",
        doc="Addresses told to clients, NAME://host:port, for those listeners whose own address"
        " clients cannot use.",
    )
    listener_security_protocol_map = words(
        [f"{protocol}:{protocol}" for protocol in SecurityProtocol],
        since="0.10.2",
        doc="Protocol of each listener's name.",
    )
    controller_listener_names = words(
        [],
        since="2.8",
        doc="Listeners of Kafka's controller. They are left out: magnetar has no controller port.",
    )


class SecurityConfig(Config):
    """The settings of one listener."""

    ssl_keystore_type = string(
        "JKS",
        one_of=("JKS", "PKCS12", "PEM"),
        since="0.9",
        doc="What ssl.keystore.location is: PEM, or PKCS12 (JKS is refused where the file is one).",
    )
    ssl_keystore_location = optional_string(
        since="0.9", doc="File with the private key and its certificate chain."
    )
    ssl_keystore_password = password(since="0.9", doc="Password of a PKCS12 keystore.")
    ssl_keystore_key = password(since="2.7", doc="The private key itself, as PEM.")
    ssl_keystore_certificate_chain = password(
        since="2.7", doc="The certificate chain itself, as PEM."
    )
    ssl_key_password = password(since="0.9", doc="Password of an encrypted PEM key.")
    ssl_truststore_type = string(
        "JKS",
        one_of=("JKS", "PKCS12", "PEM"),
        since="0.9",
        doc="What ssl.truststore.location is, as for ssl.keystore.type.",
    )
    ssl_truststore_location = optional_string(
        since="0.9", doc="File with the certificates that sign trusted clients."
    )
    ssl_truststore_password = password(since="0.9", doc="Password of a PKCS12 truststore.")
    ssl_truststore_certificates = password(
        since="2.7", doc="The trusted certificates themselves, as PEM."
    )
    ssl_allow_dn_changes = boolean(
        False,
        since="3.7",
        doc="Whether a certificate that is changed at run time may have another subject.",
    )
    ssl_allow_san_changes = boolean(
        False,
        since="3.7",
        doc="Whether a certificate that is changed at run time may lack alternative names of the"
        " one before.",
    )
    ssl_client_auth = string(
        "none",
        one_of=("none", "requested", "required"),
        since="0.9",
        doc="Whether clients show a certificate.",
    )
    ssl_endpoint_identification_algorithm = string(
        "https",
        since="0.10.2",
        doc="https: a node of a cluster that dials another checks that the certificate names the"
        " host. Empty: it does not. Without effect on listeners for clients.",
    )
    ssl_enabled_protocols = words(
        ["TLSv1.2", "TLSv1.3"],
        one_of=("TLSv1.2", "TLSv1.3"),
        since="0.9",
        doc="Versions of TLS that are spoken.",
    )
    ssl_cipher_suites = empty_words(
        since="0.9", doc="Cipher suites of TLS 1.2, by Java's or OpenSSL's names; none: all."
    )
    ssl_principal_mapping_rules = string(
        "DEFAULT",
        since="2.2",
        doc="Rules that make a user's name of a certificate's (KIP-371); the first that fits.",
    )
    sasl_enabled_mechanisms = words(
        ["GSSAPI"],
        since="0.10",
        doc="SASL mechanisms of a listener. Served: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
        " OAUTHBEARER.",
    )
    sasl_jaas_config = password(
        since="0.10.2",
        doc="The options of a mechanism as one JAAS entry. Given for one listener and mechanism:"
        " listener.name.LISTENER.MECHANISM.sasl.jaas.config.",
    )
    sasl_server_max_receive_size = integer(
        524288, since="3.4", doc="Largest request before a connection has authenticated."
    )
    connections_max_reauth_ms = long(
        0,
        since="2.2",
        doc="How long a login lasts: then the client must have authenticated again. 0: for ever.",
    )
    connection_failed_authentication_delay_ms = integer(
        100, minimum=0, since="2.1", doc="How long the answer to a failed login is held back."
    )


class AuthorizationConfig(Config):
    """Who may do what; the same for all listeners."""

    authorizer_class_name = string(
        "",
        since="0.9",
        doc="org.apache.kafka.metadata.authorizer.StandardAuthorizer: what no ACL allows is denied."
        " Empty: who may connect may do everything.",
    )
    super_users = string(
        "",
        since="0.9",
        doc="Principals that may do everything, separated by semicolons: User:ada;User:bob.",
    )
    allow_everyone_if_no_acl_found = boolean(
        False, since="0.9", doc="Allow what concerns a resource that no ACL is about."
    )


#: The settings of this file, which a broker has besides its own.
SECURITY_SETTINGS = {
    **ListenersConfig.settings,
    **AuthorizationConfig.settings,
    **SecurityConfig.settings,
    **OAuthBearerConfig.settings,
    **ProvidersConfig.settings,
}
#: The settings that a listener may have for itself.
_LISTENER_SETTINGS = {**SecurityConfig.settings, **OAuthBearerConfig.settings, **OF_LISTENERS}


def listener_setting(name: str) -> Setting[object] | None:
    """Return the setting that a name with a listener's prefix stands for; None for other names."""
    parts = name.removeprefix(LISTENER_PREFIX).split(".", 1)
    if not name.startswith(LISTENER_PREFIX) or len(parts) < 2:
        return None
    found: Setting[object] | None = _LISTENER_SETTINGS.get(parts[1])
    if found is None:
        _, _, base = parts[1].partition(".")
        found = _LISTENER_SETTINGS[base] if base in _OF_MECHANISMS else None
    return found


def listener_security(
    config: Config, listener: str, mechanism: str | None = None
) -> SecurityConfig:
    """Return the settings of one listener, where given of one of its mechanisms."""
    return listener_view(config, SecurityConfig, listener, mechanism)


def listener_view(
    config: Config, table: type[Table], listener: str, mechanism: str | None
) -> Table:
    """Return the settings of `table` for one listener, where given for one of its mechanisms.

    The most specific name wins: the mechanism's, the listener's, the broker's.
    """
    prefixes = ["", f"{LISTENER_PREFIX}{listener.lower()}."]
    if mechanism is not None:
        prefixes.append(f"{prefixes[-1]}{mechanism.lower()}.")
    values: dict[str, object] = {}
    for prefix in prefixes:
        for name in table.settings:
            if prefix + name in config.explicit:
                values[name] = config[prefix + name]
    return table(values)
