"""A certificate authority for tests, and certificates of servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_LIFETIME = datetime.timedelta(days=2)
COMMON_NAME, COUNTRY, ORGANIZATION, EMAIL = (
    NameOID.COMMON_NAME,
    NameOID.COUNTRY_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.EMAIL_ADDRESS,
)


class KeyPair(NamedTuple):
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write_pem(self, path: Path) -> Path:
        path.write_text(self.key_pem + self.certificate_pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"key", self.key, self.certificate, None, BestAvailableEncryption(password.encode())
            )
        )
        return path


#: What a key may be used for, as KeyUsage names it.
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def named(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Return a name; a certificate has its parts in this order."""
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def make(
    name: x509.Name,
    issuer: KeyPair | None = None,
    *,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    has_expired: bool = False,
    is_authority: bool = False,
) -> KeyPair:
    """Return a key pair for `hosts`, signed by `issuer`; or an authority of no host, which also has
    signed itself where there is no `issuer`."""
    is_authority = is_authority or issuer is None
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now - _LIFETIME / 2 if has_expired else now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        # Python 3.13 and newer trust no certificate without the two, and an authority by its usage.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                (issuer.key if issuer else key).public_key()
            ),
            critical=False,
        )
    )
    if is_authority:
        usage = dict.fromkeys(_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    else:
        addresses = x509.SubjectAlternativeName(map(_general_name, hosts))
        builder = builder.add_extension(addresses, critical=False)
    return KeyPair(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
