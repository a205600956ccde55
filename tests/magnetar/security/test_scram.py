"""SCRAM: the RFC's own example, and what must fail alike."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import time

import pytest

from magnetar.security.principal import Principal
from magnetar.security.sasl import AuthenticationFailed, Identity
from magnetar.security.scram import (
    MESSAGE_BYTES_MAX,
    ScramCredential,
    ScramExchange,
    TokenLogin,
    credential,
    salted_password,
)
from tests.magnetar.scram_users import ScramUsersOf

SHA_256 = "SCRAM-SHA-256"
# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def kept(password: str, mechanism: str = SHA_256) -> ScramCredential:
    return credential(mechanism, SALT, 4096, salted_password(mechanism, password, SALT, 4096))


def exchange(users: dict[str, ScramCredential], mechanism: str = SHA_256) -> ScramExchange:
    return ScramExchange(mechanism, ScramUsersOf(mechanism, users), SERVER_NONCE)


def log_in(
    server: ScramExchange,
    name: str,
    password: str,
    mechanism: str = SHA_256,
    extensions: str = "",
    gs2: str = "n,,",
) -> bytes:
    """Play the client's part; return server-final."""
    bare = f"n={name},r={CLIENT_NONCE}{extensions}"
    server_first = server.step(f"{gs2}{bare}".encode(), 0).decode()
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    salted = salted_password(mechanism, password, base64.b64decode(fields["s"]), int(fields["i"]))
    name_of_hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name_of_hash)
    stored_key = hashlib.new(name_of_hash, client_key).digest()
    without_proof = f"c={base64.b64encode(gs2.encode()).decode()},r={fields['r']}"
    message = f"{bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(stored_key, message, name_of_hash)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return server.step(f"{without_proof},p={base64.b64encode(proof).decode()}".encode(), 0)


def test_the_example_of_rfc_7677() -> None:
    server = exchange({"user": kept("pencil")})
    first = server.step(f"n,,n=user,r={CLIENT_NONCE}".encode(), 0)
    assert first == (f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    final = server.step(
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode(),
        0,
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.identity is not None
    assert server.identity.principal == Principal("User", "user")


def test_sha_512_and_a_name_with_a_comma() -> None:
    server = exchange({"a,b=c": kept("pw", "SCRAM-SHA-512")}, "SCRAM-SHA-512")
    assert log_in(server, "a=2Cb=3Dc", "pw", "SCRAM-SHA-512").startswith(b"v=")
    assert server.identity is not None
    assert server.identity.principal.name == "a,b=c"


def test_a_name_beyond_latin_1_may_be_the_authorization_id_too() -> None:
    server = exchange({"Łucja": kept("pw")})
    assert log_in(server, "Łucja", "pw", gs2="n,a=Łucja,").startswith(b"v=")


def test_a_wrong_password_and_an_unknown_user_fail_in_the_same_step_and_words() -> None:
    refusals = []
    for name, password in (("user", "wrong"), ("stranger", "pencil")):
        server = exchange({"user": kept("pencil")})
        with pytest.raises(AuthenticationFailed) as failed:
            log_in(server, name, password)
        assert server.identity is None
        refusals.append(str(failed.value))
    assert refusals[0] == refusals[1]


def test_the_salt_of_an_unknown_user_is_always_the_same() -> None:
    first = f"n,,n=stranger,r={CLIENT_NONCE}".encode()
    assert exchange({}).step(first, 0) == exchange({}).step(first, 0)
    other = f"n,,n=another,r={CLIENT_NONCE}".encode()
    assert exchange({}).step(first, 0) != exchange({}).step(other, 0)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,n=user",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=user,r=",
        # The end of it would be read in order, for a tenth of a second.
        b"n,,n=" + b"x" * MESSAGE_BYTES_MAX + b",r=abc",
    ],
)
def test_a_first_message_that_cannot_be_read_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange({"user": kept("pencil")}).step(first, 0)


@pytest.mark.parametrize(
    "final",
    [
        "c=biws,r=NONCE,p=AAAA",
        "c=biws,r=NONCE,p=***",
        "c=biws,r=other,p=" + base64.b64encode(bytes(32)).decode(),
        "c=eSws,r=NONCE,p=" + base64.b64encode(bytes(32)).decode(),
        "r=NONCE,p=AAAA",
    ],
)
def test_a_final_message_that_proves_nothing_is_refused(final: str) -> None:
    server = exchange({"user": kept("pencil")})
    server.step(f"n,,n=user,r={CLIENT_NONCE}".encode(), 0)
    with pytest.raises(AuthenticationFailed):
        server.step(final.replace("NONCE", CLIENT_NONCE + SERVER_NONCE).encode(), 0)
    assert server.identity is None


def test_a_token_lets_in_its_owner_and_only_by_the_extension() -> None:
    token = TokenLogin(kept("password"), Principal("User", "ada"), 1_000)
    users = ScramUsersOf(SHA_256, {"ada": kept("pencil")}, {"token-id": token})
    server = ScramExchange(SHA_256, users, SERVER_NONCE)
    assert log_in(server, "token-id", "password", extensions=",tokenauth=true").startswith(b"v=")
    assert server.identity == Identity(Principal("User", "ada"), 1_000, is_token=True)
    for name, password, extensions in (
        ("token-id", "password", ""),
        ("token-id", "password", ",tokenauth=false"),
        ("token-id", "pencil", ",tokenauth=true"),
        # A user is no token, and a token no user.
        ("ada", "pencil", ",tokenauth=true"),
    ):
        server = ScramExchange(SHA_256, users, SERVER_NONCE)
        with pytest.raises(AuthenticationFailed):
            log_in(server, name, password, extensions=extensions)
        assert server.identity is None


def test_a_first_and_a_final_message_of_another_login_prove_nothing() -> None:
    users = ScramUsersOf(SHA_256, {"user": kept("pencil")})
    sent: list[bytes] = []

    class Overheard(ScramExchange):
        def step(self, token: bytes, now_ms: int) -> bytes:
            sent.append(token)
            return super().step(token, now_ms)

    log_in(Overheard(SHA_256, users, SERVER_NONCE), "user", "pencil")
    another = ScramExchange(SHA_256, users, "another nonce".replace(" ", "-"))
    another.step(sent[0], 0)
    with pytest.raises(AuthenticationFailed):
        another.step(sent[1], 0)
    assert another.identity is None


HALF_A_MEGABYTE = 500_000


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=" + b"a" * HALF_A_MEGABYTE + b",r=abc",
        b"n,,n=" + b"a=2C" * (HALF_A_MEGABYTE // 4) + b",r=abc",
        b"n,,n=" + b"a" * HALF_A_MEGABYTE + b",r=",
        b"n,,n=a,r=abc" + b",a=b" * (HALF_A_MEGABYTE // 4),
    ],
    ids=["a name", "escapes", "no nonce", "extensions"],
)
def test_a_long_message_takes_no_time(first: bytes) -> None:
    # Whoever connects may send so much, and the event loop reads it.
    server = exchange({})
    began_s = time.thread_time()
    with contextlib.suppress(AuthenticationFailed):
        server.step(first, 0)
    assert time.thread_time() - began_s < 0.03


def test_a_connection_holds_little_before_its_login() -> None:
    server = exchange({})
    with pytest.raises(AuthenticationFailed):
        server.step(b"n,,n=ada,r=" + b"z" * HALF_A_MEGABYTE, 0)
    # The longest name that a user can have.
    assert server.step(b"n,,n=" + b"a" * 32_767 + b",r=abc", 0).startswith(b"r=abc")


@pytest.mark.parametrize("name", ["a=", "a=2", "==2C2C", "=3=2CD", "=2c"])
def test_an_equals_sign_is_escaped(name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange({}).step(f"n,,n={name},r=abc".encode(), 0)
