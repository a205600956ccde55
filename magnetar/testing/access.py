"""Who a test's broker lets in: TLS, users and ACLs, and the settings of clients for them.

Users log in by PLAIN, or by SCRAM where that is asked for. A user of this package's own, with a
random password, makes the ACLs.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.client.acls import Acl
    from magnetar.client.cluster import Client
    from magnetar.client.security import Security

#: The client id of this package's own client. The broker's faults pass over it:
#: `magnetar.faults.rules.OWN_CLIENT_ID`.
CLIENT_ID = "magnetar-testing"
_ADMINISTRATOR = CLIENT_ID
_STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_SECURITY = "org.apache.kafka.common.security"
_PLAIN_MODULE = f"{_SECURITY}.plain.PlainLoginModule"
_SCRAM_MODULE = f"{_SECURITY}.scram.ScramLoginModule"


def allow(
    user: str, *operations: str, host: str = "*", prefix: bool = False, **resource: str
) -> list[Acl]:
    """Return ACLs by Kafka's words: `allow("ada", "READ", "WRITE", topic="orders")`.

    The resource is `topic`, `group`, `transactional_id`, `user` or `cluster="kafka-cluster"`; `*`
    is every user, or every resource. `host`: an address, or a network such as `10.0.0.0/8`.
    `prefix`: the name is a prefix of names.
    """
    return _acls("ALLOW", user, operations, host, prefix, resource)


def deny(
    user: str, *operations: str, host: str = "*", prefix: bool = False, **resource: str
) -> list[Acl]:
    """Return ACLs that forbid what other ACLs allow; arguments as for `allow`."""
    return _acls("DENY", user, operations, host, prefix, resource)


def _acls(
    permission: str,
    user: str,
    operations: Sequence[str],
    host: str,
    prefix: bool,
    resource: Mapping[str, str],
) -> list[Acl]:
    # Here, since few tests need them: what a first broker waits for is imported while it starts.
    from magnetar.client.acls import Acl, Operation, Pattern, Permission, Resource

    ((kind, name),) = resource.items()
    pattern = Pattern.PREFIXED if prefix else Pattern.LITERAL
    return [
        Acl(
            Resource[kind.upper()],
            name,
            pattern,
            f"User:{user}",
            host,
            Operation[operation.upper()],
            Permission[permission],
        )
        for operation in operations
    ]


@dataclass
class Access:
    """What a broker and its clients are told. `directory` takes certificates and settings."""

    directory: Path
    has_tls: bool = False
    users: Mapping[str, str] = field(default_factory=dict)
    acls: Sequence[Acl] = ()
    mechanism: str = "PLAIN"
    _administrator: tuple[str, str] = field(
        default_factory=lambda: (_ADMINISTRATOR, secrets.token_urlsafe())
    )

    def __post_init__(self) -> None:
        if self.acls and not self.users:
            raise ValueError("acls= needs users=: without a login everyone is User:ANONYMOUS")
        if self.has_tls:
            _write_certificates(self.directory)

    @property
    def protocol(self) -> str:
        """The `security.protocol` of broker and clients."""
        tls = "SSL" if self.has_tls else "PLAINTEXT"
        return f"SASL_{tls}" if self.users else tls

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of `magnetar serve`."""
        settings: dict[str, str] = {}
        if self.has_tls:
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.location"] = str(self.directory / "server.pem")
        if self.users:
            names = dict.fromkeys(("PLAIN", self.mechanism))
            settings["sasl.enabled.mechanisms"] = ",".join(names)
            # The administrator always logs in by PLAIN.
            users = dict([self._administrator])
            users |= self.users if self.mechanism == "PLAIN" else {}
            options = " ".join(
                f'user_{name}="{_escaped(password)}"' for name, password in users.items()
            )
            jaas = f"listener.name.{self.protocol.lower()}.plain.sasl.jaas.config"
            settings[jaas] = f"{_PLAIN_MODULE} required {options};"
        if self.acls:
            settings["authorizer.class.name"] = _STANDARD_AUTHORIZER
            settings["super.users"] = f"User:{_ADMINISTRATOR}"
        return settings

    def make_users(self, data_dir: Path) -> None:
        """Write the users of SCRAM to the data directory of a broker that does not run."""
        for name, password in self.users.items() if self.mechanism != "PLAIN" else ():
            command = [sys.executable, "-m", "magnetar", "users", "add", name]
            command += ["--password-file", "-", "--data-dir", str(data_dir)]
            subprocess.run(command, input=password, text=True, check=True, capture_output=True)

    def make_acls(self, bootstrap_servers: str) -> None:
        """Give the running broker its ACLs."""
        if self.acls:
            from magnetar.client.acls import create_acls

            with self.administrator(bootstrap_servers) as client:
                create_acls(client, self.acls)

    def administrator(self, bootstrap_servers: str) -> Client:
        """Return a client of this package's own, which may do everything."""
        from magnetar.client.cluster import Client
        from magnetar.client.security import parse_security

        security = parse_security(self._client(*self._administrator, "PLAIN"))
        return Client(bootstrap_servers, client_id=CLIENT_ID, security=security)

    def security(self, user: str | None = None) -> Security:
        """Return `client` as clients of ours read it."""
        from magnetar.client.security import parse_security

        return parse_security(self.client(user))

    def client(self, user: str | None = None) -> dict[str, str]:
        """Return a client's settings by Kafka's names; without a `user`, for the first."""
        if not self.users:
            return self._client("", "", self.mechanism)
        user = next(iter(self.users)) if user is None else user
        # A test may want a login that the broker refuses: here an unknown user is no mistake.
        return self._client(user, self.users.get(user, "unknown"), self.mechanism)

    def _client(self, user: str, password: str, mechanism: str) -> dict[str, str]:
        settings = {"security.protocol": self.protocol}
        if self.has_tls:
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = str(self.directory / "authority.pem")
        if self.users:
            module = _PLAIN_MODULE if mechanism == "PLAIN" else _SCRAM_MODULE
            settings["sasl.mechanism"] = mechanism
            settings["sasl.jaas.config"] = (
                f'{module} required username="{_escaped(user)}" password="{_escaped(password)}";'
            )
        return settings


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _write_certificates(directory: Path) -> None:
    try:
        from magnetar.testing.certificates import COMMON_NAME, make, named
    except ImportError as missing:
        raise ImportError(
            f"tls=True makes certificates, which needs {missing.name}: pip install"
            " 'magnetar[security]'"
        ) from None
    authority = make(named((COMMON_NAME, "authority of magnetar.testing")))
    (directory / "authority.pem").write_text(authority.certificate_pem)
    make(named((COMMON_NAME, "broker")), authority).write_pem(directory / "server.pem")
