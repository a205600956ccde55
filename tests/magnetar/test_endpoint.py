"""Endpoints of OAuth: which URLs are taken, and peers that hang, lie or never end."""

from __future__ import annotations

import os
import ssl
import time
from functools import cache
from pathlib import Path

import pytest

from magnetar.endpoint import (
    ANSWER_BYTES_MAX,
    EndpointFailed,
    parse_endpoint,
    read_endpoint,
    trusting,
)
from magnetar.testing.certificates import COMMON_NAME, make, named
from tests.magnetar.http_server import HttpServer, answer, flood, silence, trickle


@cache
def systems() -> ssl.SSLContext:
    return ssl.create_default_context()


def read(url: str, timeout_s: float = 5.0, context: ssl.SSLContext | None = None) -> bytes:
    chosen = context or systems()
    return read_endpoint(parse_endpoint(url), lambda: chosen, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://issuer.test/keys", "https://issuer.test/keys"),
        (" https://issuer.test:8443 ", "https://issuer.test:8443/"),
        ("HTTPS://ISSUER.test/a?secret=1", "https://issuer.test/a"),
        ("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/a"),
        ("http://localhost/a", "http://localhost/a"),
        ("http://[::1]:80/a", "http://[::1]/a"),
        ("file:/etc/keys", "file:/etc/keys"),
        ("file:///etc/a%20b", "file:/etc/a b"),
        ("file:relative", "file:relative"),
    ],
)
def test_urls_that_are_taken(url: str, shown: str) -> None:
    assert str(parse_endpoint(url)) == shown


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "is neither file:"),
        ("/etc/keys", "is neither file:"),
        ("ftp://issuer.test/", "is neither file:"),
        ("https:///keys", "names no host"),
        ("https://\u00fc.test/", "names no host"),
        ("https://issuer.test:x/", "is no URL"),
        ("https://[::1/", "is no URL"),
        ("https://ada.test:pw@issuer.test/", "user name or password"),
        ("http://issuer.test/keys", "Use https:"),
        ("http://127.0.0.1.issuer.test/", "Use https:"),
        ("file://issuer.test/keys", "without a path"),
        ("file:", "without a path"),
    ],
)
def test_urls_that_are_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        parse_endpoint(url)
    assert "pw" not in str(refusal.value)


def test_an_answer_is_read_and_what_was_asked_is_small() -> None:
    with HttpServer(answer(b'{"keys": []}')) as server:
        assert read(server.url) == b'{"keys": []}'
    assert server.asked[0].startswith(b"GET /path?query=1 HTTP/1.1\r\n")


def test_a_body_is_posted() -> None:
    with HttpServer(answer(b"ok", "201 Created")) as server:
        endpoint = parse_endpoint(server.url)
        assert read_endpoint(endpoint, systems, {"X-Y": "z"}, b"a=b") == b"ok"
    assert server.asked[0].startswith(b"POST /path?query=1 ")
    assert b"X-Y: z" in server.asked[0]


def test_tls_is_spoken_with_whom_the_context_trusts(tmp_path: Path) -> None:
    # Which another one has signed, and which is trusted for itself.
    root = make(named((COMMON_NAME, "root")))
    authority = make(named((COMMON_NAME, "authority")), root, is_authority=True)
    pair = make(named((COMMON_NAME, "issuer")), authority).write_pem(tmp_path / "pair.pem")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair)
    with HttpServer(answer(b"ok"), serving) as server:
        assert read(server.url, context=trusting(cadata=authority.certificate_pem)) == b"ok"
        with pytest.raises(EndpointFailed, match="certificate is not trusted"):
            read(server.url)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(b"gone", "404 Not Found"), "answers with status 404"),
        (answer(b"", "302 Found", "Location: http://evil.test/\r\n"), "redirects are not followed"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"\x16\x03\x01\x02", "does not speak HTTP"),
        (b"", "closed connection without response"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broke off"),
        (answer(b"x" * (ANSWER_BYTES_MAX + 1)), "more than 1048576 bytes"),
    ],
)
def test_an_answer_of_no_use_is_told_in_a_sentence(reply: bytes, reason: str) -> None:
    with HttpServer(reply) as server, pytest.raises(EndpointFailed, match=reason) as failure:
        read(server.url)
    assert "query" not in str(failure.value)


@pytest.mark.parametrize(("reply", "reason"), [(silence, "did not"), (trickle, "did not")])
def test_a_peer_that_hangs_or_trickles_is_left_in_time(reply: object, reason: str) -> None:
    assert callable(reply)
    with HttpServer(reply) as server:
        began_s = time.monotonic()
        with pytest.raises(EndpointFailed, match=f"{reason} answer within 0.3 s"):
            read(server.url, timeout_s=0.3)
        assert time.monotonic() - began_s < 5


def test_an_answer_without_end_is_read_to_the_bound_alone() -> None:
    with HttpServer(flood) as server, pytest.raises(EndpointFailed, match="more than 1048576"):
        read(server.url)


def test_nothing_listens() -> None:
    with HttpServer(b"") as server:
        url = server.url
    with pytest.raises(EndpointFailed, match="cannot read http://127.0.0.1:.*refused"):
        read(url)


def test_a_file_is_read_and_what_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    assert read((tmp_path / "keys.json").as_uri()) == b"{}"
    with pytest.raises(EndpointFailed, match="cannot read .*No such file"):
        read((tmp_path / "missing").as_uri())
    with pytest.raises(EndpointFailed, match="is no file|cannot read"):
        read(tmp_path.as_uri())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EndpointFailed, match="is no file"):
        read((tmp_path / "pipe").as_uri())
    (tmp_path / "large").write_bytes(b"x" * (ANSWER_BYTES_MAX + 1))
    with pytest.raises(EndpointFailed, match="more than 1048576 bytes"):
        read((tmp_path / "large").as_uri())
