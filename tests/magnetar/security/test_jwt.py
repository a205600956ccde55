"""Signed tokens: what is taken, and every way to be refused."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from magnetar.security.jwt import (
    ALGORITHMS,
    KeySet,
    TokenRules,
    UnknownKey,
    parse_key_set,
    verified,
)
from magnetar.security.oauthbearer import TOKEN_BYTES_MAX, TokenRefused
from magnetar.security.principal import user

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RULES = TokenRules(frozenset({"kafka", "other"}), "https://issuer.test")
CLAIMS = {
    "sub": "ada",
    "iss": "https://issuer.test",
    "aud": "kafka",
    "iat": NOW_S,
    "exp": NOW_S + 60,
}
CURVES: dict[str, type[ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}


@cache
def private_key(algorithm: str) -> Any:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa_key()


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def stranger() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def entry(key: Any, **members: Any) -> dict[str, Any]:
    """Return a public key as a set has it; None leaves out a member."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        made = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        made = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        made = OKPAlgorithm.to_jwk(public, as_dict=True)
    merged = {"use": "sig", **made, **members}
    return {name: value for name, value in merged.items() if value is not None}


def key_set(*entries: Any) -> KeySet:
    return parse_key_set(json.dumps({"keys": entries}).encode())


def token(algorithm: str = "RS256", *, key: Any = None, headers: Any = None, **claims: Any) -> str:
    said = {name: each for name, each in {**CLAIMS, **claims}.items() if each is not None}
    named = {"kid": "a", **(headers or {})}
    return jwt.encode(said, key or private_key(algorithm), algorithm, headers=named)


def keys(algorithm: str = "RS256") -> KeySet:
    return key_set(entry(private_key(algorithm), kid="a"))


def refused(text: str, given: str, rules: TokenRules = RULES, of: KeySet | None = None) -> None:
    with pytest.raises(TokenRefused, match=text) as refusal:
        verified(given, of or keys(), rules, NOW_MS)
    assert len(str(refusal.value)) < 300


def segment(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_signature_of_every_asymmetric_algorithm_names_its_user(algorithm: str) -> None:
    identity = verified(token(algorithm), keys(algorithm), RULES, NOW_MS)
    assert (identity.principal, identity.expires_at_ms) == (user("ada"), NOW_MS + 60_000)


def test_no_symmetric_algorithm_and_none_is_among_them() -> None:
    assert not {name for name in ALGORITHMS if name.startswith("HS") or name == "none"}


def test_an_unsigned_token_is_refused_however_it_is_written() -> None:
    claims = segment(json.dumps(CLAIMS).encode())
    for name in ("none", "None", "NONE", "nOnE", ""):
        header = segment(json.dumps({"alg": name, "kid": "a"}).encode())
        refused("is not taken", f"{header}.{claims}.")
        refused("is not taken", f"{header}.{claims}.{segment(b'signature')}")


def test_a_public_key_is_no_secret_of_hmac() -> None:
    pem = (
        private_key("RS256")
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for name in ("HS256", "HS384", "HS512"):
        head = segment(json.dumps({"alg": name, "kid": "a"}).encode())
        signed = f"{head}.{segment(json.dumps(CLAIMS).encode())}"
        mac = hmac.digest(pem, signed.encode(), f"sha{name[2:]}")
        refused(f"{name}' is not taken", f"{signed}.{segment(mac)}")


def test_a_forged_or_changed_token_is_refused() -> None:
    refused("signature is of no known key", token(key=stranger()))
    head, _, signature = token().split(".")
    eve = segment(json.dumps({**CLAIMS, "sub": "eve"}).encode())
    refused("signature is of no known key", f"{head}.{eve}.{signature}")
    refused("signature is of no known key", f"{head}.{eve}.")


def test_a_key_verifies_the_algorithms_of_its_kind_alone() -> None:
    refused("signature is of no known key", token("ES256"))
    only = key_set(entry(private_key("RS256"), kid="a", alg="RS512"))
    refused("signature is of no known key", token("RS256"), of=only)
    assert verified(token("RS512"), only, RULES, NOW_MS).principal == user("ada")


def test_a_key_that_brings_itself_is_not_believed() -> None:
    mine = {"jwk": entry(stranger()), "jku": "https://evil.test/jwks", "x5u": "https://evil.test"}
    refused("signature is of no known key", token(key=stranger(), headers=mine))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW_S - 30}, "expired 30 s ago"),
        ({"exp": None}, "when it expires"),
        ({"iat": None}, "when it was issued"),
        ({"exp": "tomorrow"}, "exp is 'tomorrow', no time"),
        ({"exp": True}, "exp is True"),
        ({"exp": 10**400}, "no time"),
        ({"exp": float("inf")}, "no time"),
        ({"exp": float("nan")}, "no time"),
        ({"nbf": NOW_S + 31}, "holds in 31 s only"),
        ({"iat": NOW_S + 70}, "expires before it holds"),
        ({"iss": None}, "issuer is None"),
        ({"iss": "https://issuer.test/"}, "issuer is 'https://issuer.test/', not https"),
        ({"iss": ["https://issuer.test"]}, "issuer is"),
        ({"aud": None}, "audience is None: kafka, other"),
        ({"aud": "x" * 9000}, "audience is 'xxx"),
        ({"aud": ["x", 1]}, "audience is"),
        ({"aud": {"kafka": 1}}, "audience is"),
        ({"sub": None}, "names no one"),
        ({"sub": " \n"}, "names no one"),
        ({"sub": 7}, "names no one: claim sub is 7"),
        # No message could carry these names, nor the catalog keep the first.
        ({"sub": "ada\ud800"}, "names no one: claim sub is 'ada"),
        ({"sub": "x" * 32_768}, "names no one: claim sub is 'xxx"),
        ({"scope": ""}, "no scope"),
        ({"scope": ["a", "a"]}, "no scope"),
        ({"scope": [["a"]]}, "no scope"),
        ({"scope": 1}, "no scope"),
    ],
)
def test_claims_that_do_not_fit_are_refused_with_the_reason(
    claims: dict[str, Any], reason: str
) -> None:
    head, _, _ = token().split(".")
    said = {name: each for name, each in {**CLAIMS, **claims}.items() if each is not None}
    signed = f"{head}.{segment(json.dumps(said).encode())}".encode()
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(signed, private_key("RS256"))
    refused(reason, f"{signed.decode()}.{segment(signature)}")


def test_claims_within_the_clock_skew_are_taken() -> None:
    given = token(exp=NOW_S - 29, iat=NOW_S - 40, nbf=NOW_S - 35)
    assert verified(given, keys(), RULES, NOW_MS).expires_at_ms == NOW_MS - 29_000
    assert verified(token(nbf=NOW_S + 30), keys(), RULES, NOW_MS).principal == user("ada")
    refused("expired", token(exp=NOW_S - 1, iat=0), TokenRules(RULES.audiences, None, 0))


def test_claims_have_the_names_of_the_settings() -> None:
    rules = TokenRules(RULES.audiences, None, 30, "scp", "azp")
    given = token(azp=" svc ", scp=["a b", "c"], iss=None, aud=["x", "other"], scope=1)
    assert verified(given, keys(), rules, NOW_MS).principal == user("svc")


def test_without_an_expected_audience_a_token_that_has_one_is_refused() -> None:
    refused("none is expected", token(), TokenRules())
    assert verified(token(aud=None), keys(), TokenRules(), NOW_MS).principal == user("ada")


@pytest.mark.parametrize("audience", ["kafka", ["x", 1], 5, None])
def test_any_audience_is_taken_where_that_is_asked_for(audience: object) -> None:
    rules = TokenRules(audiences=None)
    assert verified(token(aud=audience), keys(), rules, NOW_MS).principal == user("ada")


def test_a_token_of_an_unknown_key_says_so_and_one_that_names_none_is_tried_with_each() -> None:
    with pytest.raises(UnknownKey, match="no key 'b'"):
        verified(token(headers={"kid": "b"}), keys(), RULES, NOW_MS)
    several = key_set(entry(stranger(), kid="x"), entry(private_key("RS256"), kid="a"))
    bare = jwt.encode(CLAIMS, private_key("RS256"), "RS256")
    assert verified(bare, several, RULES, NOW_MS).principal == user("ada")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "a",
        "..",
        "a.b.c",
        "e30.e30.",
        segment(b"[]") + ".e30.AA",
        segment(b'{"alg":') + ".e30.AA",
        segment(b'{"alg":"RS256","kid":7}') + ".e30.AA",
        segment(b'{"alg":["RS256"]}') + ".e30.AA",
        segment(b'{"alg":' + b"[" * 20_000 + b"]" * 20_000 + b"}") + ".e30.AA",
        segment(b'{"alg":' + b"9" * 5_000 + b"}") + ".e30.AA",
        segment(b'{"alg":"RS256","crit":["b64"],"b64":false}') + ".e30.AA",
        segment(b'{"alg":"dir","enc":"A256GCM"}') + "..AA.AA.AA",
        "\u00e9.e30.AA",
    ],
)
def test_what_is_no_token_is_refused(given: str) -> None:
    refused("no signed token|is not taken|no known key|must be understood|is no text", given)


def test_claims_that_are_no_object_are_refused_although_they_are_signed() -> None:
    for payload in (b"[]", b"1", b"{", b"\xff", b"[" * 10_000):
        signed = jwt.api_jws.encode(payload, private_key("RS256"), "RS256", {"kid": "a"})
        refused("no object of JSON", signed)


def test_a_token_over_the_limit_is_refused_unread() -> None:
    refused("more than 65536", "x" * (TOKEN_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"<html>", "no JSON"),
        (b"[]", "no set of keys"),
        (b'{"keys": {}}', "no set of keys"),
        (b'{"keys": []}', "none of its 0 keys"),
        (b'{"keys": [1, null, [], "x", {}, {"kty": ["RSA"]}]}', "none of its 6 keys"),
    ],
)
def test_what_is_no_set_of_keys_is_refused(document: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_key_set(document)


@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"kid": 7},
        {"alg": "HS256"},
        {"alg": "ES256"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"n": None},
        {"n": 5},
        {"n": "AQAB"},
        {"n": "AQAB" * 100_000},
        {"e": "A" * 60},
        {"e": segment((2**33 + 1).to_bytes(5, "big"))},
    ],
)
def test_a_key_of_no_use_is_passed_over_and_the_others_count(members: dict[str, Any]) -> None:
    useless = entry(private_key("RS256"), **{"kid": "u", **members})
    assert [each.key_id for each in key_set(useless, entry(stranger(), kid="s")).keys] == ["s"]


def test_weak_keys_are_passed_over_and_of_private_ones_the_public_part_counts() -> None:
    weak = {"kty": "RSA", "n": segment(b"\xff" * 128), "e": "AQAB"}
    assert len(key_set(weak, entry(stranger())).keys) == 1
    published = RSAAlgorithm.to_jwk(private_key("RS256"), as_dict=True)
    (kept,) = key_set({name: published[name] for name in ("kty", "n", "e", "d")}).keys
    assert isinstance(kept.key, rsa.RSAPublicKey)


def test_curves_for_signatures_count() -> None:
    found = key_set(entry(ed448.Ed448PrivateKey.generate()), entry(private_key("ES384")))
    assert [each.algorithms for each in found.keys] == [("EdDSA",), ("ES384",)]
    with pytest.raises(ValueError, match="none of its 1 keys"):
        key_set({"kty": "OKP", "crv": "X25519", "x": segment(b"x" * 32)})
