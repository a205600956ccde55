"""What a listener's settings say of TLS: its key, its certificates, whom it trusts.

Keys and certificates are PEM, in files or in the settings themselves, or PKCS12. `Renewed` holds
what was made of them, and makes it again where a file has changed. A new file that cannot be used
leaves the old certificate in place, with a line in the log.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig
from magnetar.logging import get_logger

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS = (
    "is JKS, which magnetar does not read. Set its type to PEM or PKCS12, or convert it:"
    " keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12"
)

#: The first byte of every PKCS12 file.
_DER_SEQUENCE = b"\x30"

LoadedT = TypeVar("LoadedT")
ContextT = TypeVar("ContextT", bound=ssl.SSLContext)

_log = get_logger("server")


class Renewed(Generic[LoadedT]):
    """What was made of the stores that settings name, as they were when they were usable last."""

    def __init__(
        self, name: str, security: SecurityConfig, load: Callable[[SecurityConfig], LoadedT]
    ) -> None:
        """`name`: the listener's, for the log. Raises ConfigError, as `load` does."""
        self._name = name
        self._security = security
        self._load = load
        self._modified = _modification_times(security)
        #: What was refused last, which is told once.
        self._refused: SecurityConfig | None = None
        self.current = load(security)

    def is_new(self, security: SecurityConfig) -> bool:
        """Return whether these settings, or their files, are not those of `current`."""
        return _differs(security, self._security) or self._is_written(security)

    def use(self, security: SecurityConfig) -> None:
        """Go on with these settings, and with the files as they are now.

        What cannot be used leaves everything as it was, with a line in the log.
        """
        if not self.is_new(security):
            return
        refused = self._refused
        if refused and not _differs(security, refused) and not self._is_written(security):
            return
        self._modified = _modification_times(security)
        try:
            self.current = self._load(security)
        except ConfigError as mistake:
            self._refused = security
            _log.error("certificate not renewed", listener=self._name, reason=str(mistake))
        else:
            self._security, self._refused = security, None
            _log.info("certificate renewed", listener=self._name)

    def reload(self) -> None:
        """Take over the files, where one has changed since the last look."""
        self.use(self._security)

    def _is_written(self, security: SecurityConfig) -> bool:
        """Return whether the files are not as they were when they were tried last."""
        return _modification_times(security) != self._modified


def loaded_context(context: ContextT, place: str, security: SecurityConfig) -> tuple[ContextT, str]:
    """Return the context, set up by these settings, and its certificate chain as PEM.

    Whether the other side shows a certificate is not set. Raises ConfigError, whose text begins
    with `place`.
    """
    versions = [_VERSIONS[name] for name in security.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        if security.ssl_cipher_suites:
            context.set_ciphers(":".join(map(_openssl_name, security.ssl_cipher_suites)))
        chain, key = _key_pair(security)
        with _in_memory(chain) as chain_path, _in_memory(key) as key_path:
            password = security.ssl_key_password or ""
            context.load_cert_chain(chain_path, key_path, lambda: password)
        trusted = _trusted(security)
        if trusted:
            context.load_verify_locations(cadata=trusted)
            # As in Java, each certificate of a truststore is trusted for itself: also an authority
            # that another one has signed, and the certificate of one client.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"{place}: PKCS12 needs {missing.name}: pip install 'magnetar[security]'"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"{place}: cannot use its TLS settings: {reason or error}") from None
    return context, chain


def _differs(one: SecurityConfig, other: SecurityConfig) -> bool:
    return any(one[name] != other[name] for name in SecurityConfig.settings)


def _modification_times(security: SecurityConfig) -> tuple[int, ...]:
    found = []
    for path in (security.ssl_keystore_location, security.ssl_truststore_location):
        try:
            found.append(os.stat(path).st_mtime_ns if path else 0)
        except OSError:
            found.append(-1)
    return tuple(found)


def _key_pair(security: SecurityConfig) -> tuple[str, str]:
    """Return certificate chain and private key as PEM."""
    chain, key = security.ssl_keystore_certificate_chain, security.ssl_keystore_key
    path = security.ssl_keystore_location
    if chain and key:
        if path:
            raise ValueError("ssl.keystore.location and ssl.keystore.key exclude one another")
        return chain, key
    if not path:
        raise ValueError(
            "ssl.keystore.location is missing (or ssl.keystore.certificate.chain and"
            " ssl.keystore.key)"
        )
    if _is_pkcs12("ssl.keystore", path, security.ssl_keystore_type):
        return _from_pkcs12(path, security.ssl_keystore_password)
    text = _read(path).decode()
    return text, text


def _trusted(security: SecurityConfig) -> str | None:
    """Return the certificates that sign trusted clients, as PEM; None where none are named."""
    path = security.ssl_truststore_location
    if security.ssl_truststore_certificates:
        return security.ssl_truststore_certificates
    if not path:
        if security.ssl_client_auth != "none":
            raise ValueError(f"ssl.client.auth={security.ssl_client_auth} needs a truststore")
        return None
    if _is_pkcs12("ssl.truststore", path, security.ssl_truststore_type):
        return _certificates_of_pkcs12(path, security.ssl_truststore_password)
    return _read(path).decode()


def _is_pkcs12(setting: str, path: str, type_: str) -> bool:
    """Return whether a store is PKCS12 and not PEM. Raises ValueError for a JKS."""
    if type_ != "JKS":
        return type_ == "PKCS12"
    # Java reads a PKCS12 file under the type JKS too, which is Kafka's default.
    if _read(path)[:1] == _DER_SEQUENCE:
        return True
    raise ValueError(f"{setting}.location={path} {_JKS.format(path=path)}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _from_pkcs12(path: str, password: str | None) -> tuple[str, str]:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    stored = pkcs12.load_pkcs12(_read(path), (password or "").encode())
    if stored.key is None or stored.cert is None:
        raise ValueError(f"{path} has no private key with its certificate")
    chain = [stored.cert, *stored.additional_certs]
    certificates = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain)
    key = stored.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificates.decode(), key.decode()


def _certificates_of_pkcs12(path: str, password: str | None) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    stored = pkcs12.load_pkcs12(_read(path), (password or "").encode())
    certificates = [stored.cert] if stored.cert else []
    certificates += stored.additional_certs
    if not certificates:
        raise ValueError(f"{path} has no certificate")
    return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in certificates).decode()


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite that Java calls `TLS_X_WITH_AES_128_Y_Z`."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    parts = [] if exchange == "RSA" else [exchange]
    return "-".join([*parts, cipher.replace("_CBC", "")]).replace("_", "-")


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give a text the path that OpenSSL wants; a key never reaches a disk."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
