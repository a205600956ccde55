"""TLS listeners: key and trust from every kind of store, client certificates, renewal."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path

import pytest

from magnetar.config.listeners import Listener
from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig, SecurityProtocol
from magnetar.server.tls import ListenerTls
from magnetar.testing.certificates import COMMON_NAME, KeyPair, make, named

AUTHORITY = make(named((COMMON_NAME, "authority")))
SERVER = make(named((COMMON_NAME, "server")), AUTHORITY)
CLIENT = make(named((COMMON_NAME, "client")), AUTHORITY)
OTHER = make(named((COMMON_NAME, "other")), AUTHORITY)
#: Of the same subject, and of no address.
NAMELESS = make(named((COMMON_NAME, "server")))
LISTENER = Listener("SECURE", "127.0.0.1", 0, "127.0.0.1", 0, SecurityProtocol.SSL)


def listener_tls(**settings: object) -> ListenerTls:
    named_as_kafka = {name.replace("_", "."): value for name, value in settings.items()}
    return ListenerTls(LISTENER, SecurityConfig(named_as_kafka))


def met(
    tls: ListenerTls, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory; return both sides, the client's first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = tls.newest().wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(
        to_client, to_server, server_hostname="localhost", session=session
    )
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client_side, server_side


def shaken(tls: ListenerTls, client: ssl.SSLContext) -> tuple[bytes | None, bytes | None]:
    """Do a handshake in memory; return the certificate of the server and of the client."""
    client_side, server_side = met(tls, client)
    return (
        client_side.getpeercert(binary_form=True),
        server_side.getpeercert(binary_form=True),
    )


def client_context(pair: KeyPair | None, directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    if pair is not None:
        context.load_cert_chain(pair.write_pem(directory / "client.pem"))
    return context


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate_pem)


def test_key_and_chain_come_from_a_pem_file_a_pkcs12_file_or_the_settings(tmp_path: Path) -> None:
    pem = str(SERVER.write_pem(tmp_path / "server.pem"))
    p12 = str(SERVER.write_pkcs12(tmp_path / "server.p12", "pw"))
    for settings in (
        {"ssl_keystore_type": "PEM", "ssl_keystore_location": pem},
        {
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_location": p12,
            "ssl_keystore_password": "pw",
        },
        # Java reads such a file under its own type too.
        {"ssl_keystore_location": p12, "ssl_keystore_password": "pw"},
        {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_key": SERVER.key_pem,
            "ssl_keystore_certificate_chain": SERVER.certificate_pem,
        },
    ):
        server, _ = shaken(listener_tls(**settings), client_context(None, tmp_path))
        assert server == der(SERVER)


def test_a_pkcs12_file_without_the_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p12 = str(SERVER.write_pkcs12(tmp_path / "server.p12", "pw"))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(ConfigError, match=r"PKCS12 needs cryptography.*'magnetar\[security\]'"):
        listener_tls(ssl_keystore_type="PKCS12", ssl_keystore_location=p12)


def test_a_client_shows_its_certificate_where_it_is_asked(tmp_path: Path) -> None:
    settings = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(SERVER.write_pem(tmp_path / "server.pem")),
        "ssl_truststore_certificates": AUTHORITY.certificate_pem,
    }
    asked = listener_tls(**settings, ssl_client_auth="requested")
    required = listener_tls(**settings, ssl_client_auth="required")
    for tls in (asked, required):
        _, client = shaken(tls, client_context(CLIENT, tmp_path))
        assert client == der(CLIENT)
    assert shaken(asked, client_context(None, tmp_path))[1] is None
    with pytest.raises(ssl.SSLError):
        shaken(required, client_context(None, tmp_path))
    stranger = make(named((COMMON_NAME, "client")), make(named((COMMON_NAME, "another"))))
    with pytest.raises(ssl.SSLError):
        shaken(required, client_context(stranger, tmp_path))


def test_what_a_truststore_holds_is_trusted_for_itself(tmp_path: Path) -> None:
    company = make(named((COMMON_NAME, "authority of a company")), AUTHORITY, is_authority=True)
    of_company = make(named((COMMON_NAME, "client")), company)
    settings = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(SERVER.write_pem(tmp_path / "server.pem")),
        "ssl_client_auth": "required",
    }
    # What is no authority has signed nothing that counts.
    forged = make(named((COMMON_NAME, "client")), of_company)
    for trusted, strangers in ((company, [CLIENT]), (of_company, [CLIENT, OTHER, forged])):
        tls = listener_tls(**settings, ssl_truststore_certificates=trusted.certificate_pem)
        assert shaken(tls, client_context(of_company, tmp_path))[1] == der(of_company)
        for stranger in strangers:
            with pytest.raises(ssl.SSLError):
                shaken(tls, client_context(stranger, tmp_path))


def test_a_renewed_certificate_is_used_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = SERVER.write_pem(tmp_path / "server.pem")
    tls = listener_tls(ssl_keystore_type="PEM", ssl_keystore_location=str(path))
    client = client_context(None, tmp_path)
    renewed = make(named((COMMON_NAME, "renewed")), AUTHORITY)
    for step, (written, expected) in enumerate(
        [(renewed.key_pem + renewed.certificate_pem, renewed), ("rubbish", renewed)]
    ):
        path.write_text(written)
        os.utime(path, ns=(step, step))
        tls.reload()
        assert shaken(tls, client)[0] == der(expected)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_is_believed_no_more_resumes_no_session(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(AUTHORITY.certificate_pem)
    tls = listener_tls(
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(SERVER.write_pem(tmp_path / "server.pem")),
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(trusted),
        ssl_client_auth="required",
    )
    client = client_context(CLIENT, tmp_path)
    client.maximum_version = version
    client_side, server_side = met(tls, client)
    server_side.write(b"x")
    # With it comes what TLS 1.3 resumes by.
    assert client_side.read(1) == b"x"
    assert met(tls, client, client_side.session)[0].session_reused
    trusted.write_text(make(named((COMMON_NAME, "another"))).certificate_pem)
    os.utime(trusted, (1, 1))
    tls.reload()
    with pytest.raises(ssl.SSLError, match="self-signed certificate|unable to get"):
        met(tls, client, client_side.session)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "ssl.keystore.location is missing"),
        ({"ssl_keystore_location": "/no/such/file"}, "cannot read /no/such/file"),
        ({"ssl_keystore_location": "JKS"}, "is JKS, which magnetar does not read"),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_location": "JKS"}, "cannot use its TLS"),
        ({"ssl_principal_mapping_rules": "RULE:"}, "ssl.principal.mapping.rules"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.write_bytes(bytes.fromhex("feedfeed00000002"))
    given = {name: str(store) if text == "JKS" else text for name, text in settings.items()}
    with pytest.raises(ConfigError, match=said):
        listener_tls(**given)


def test_a_cipher_suite_may_have_its_java_name(tmp_path: Path) -> None:
    tls = listener_tls(
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(SERVER.write_pem(tmp_path / "server.pem")),
        ssl_enabled_protocols=["TLSv1.2"],
        ssl_cipher_suites=["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"],
    )
    names = {cipher["name"] for cipher in tls.newest().get_ciphers()}
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in names
    assert "ECDHE-ECDSA-AES128-GCM-SHA256" not in names


def test_a_change_that_cannot_be_used_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = SERVER.write_pem(tmp_path / "server.pem")
    pem = {"ssl.keystore.type": "PEM"}
    tls = ListenerTls(LISTENER, SecurityConfig({**pem, "ssl.keystore.location": str(path)}))
    for settings, said in (
        ({"ssl.keystore.location": "/no/such/file"}, "cannot read"),
        ({"ssl.keystore.location": str(written(tmp_path, OTHER))}, "ssl.allow.dn.changes"),
        ({"ssl.keystore.location": str(written(tmp_path, NAMELESS))}, "ssl.allow.san.changes"),
    ):
        changed = SecurityConfig({**pem, **settings})
        with pytest.raises(ConfigError, match=said):
            tls.check(changed)
    assert shaken(tls, client_context(None, tmp_path))[0] == der(SERVER)


def test_a_change_of_settings_is_served_to_new_connections(tmp_path: Path) -> None:
    path = SERVER.write_pem(tmp_path / "server.pem")
    tls = listener_tls(ssl_keystore_type="PEM", ssl_keystore_location=str(path))
    renewed = make(named((COMMON_NAME, "server")), AUTHORITY)
    for pair, allowed in ((renewed, {}), (OTHER, {"ssl.allow.dn.changes": True})):
        location = {"ssl.keystore.location": str(written(tmp_path, pair))}
        changed = SecurityConfig({"ssl.keystore.type": "PEM", **location, **allowed})
        tls.check(changed)
        tls.use(changed)
        assert shaken(tls, client_context(None, tmp_path))[0] == der(pair)


def written(directory: Path, pair: KeyPair) -> Path:
    return pair.write_pem(directory / f"{pair.certificate.serial_number}.pem")
