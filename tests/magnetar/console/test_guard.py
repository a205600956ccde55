"""Who gets in: hosts, origins, tokens, logins; and what a browser may do with an answer."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from magnetar.client import NotLetIn
from magnetar.client.security import PLAINTEXT
from magnetar.console.app import CHANGES, DEEDS, PAGES
from magnetar.console.guard import BODY_BYTES_MAX, allowed_hosts, refused
from magnetar.console.sessions import Access, Sessions
from tests.magnetar.console.browser import BASE, SCRAM, Browser
from tests.magnetar.console.fake_cluster import FakeClient, World
from tests.magnetar.console.test_transactions_page import world_with_two
from wire.messages.describe_configs import DescribeConfigsRequest
from wire.messages.describe_log_dirs import DescribeLogDirsRequest
from wire.messages.describe_producers import DescribeProducersRequest


def test_a_name_that_was_rebound_to_this_address_is_not_answered() -> None:
    browser = Browser(World())
    for host in ("evil.invalid", "evil.invalid:8080", "", "127.0.0.1.evil.invalid", "[::1"):
        answer = browser.client.get("/transactions", headers={"Host": host})
        assert answer.status_code == 421, host
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        answer = browser.client.get("/transactions", headers={"Host": host})
        assert answer.status_code == 200, host


def test_a_length_of_thousands_of_digits_is_too_long() -> None:
    headers = Headers({"host": "localhost", "content-length": "9" * 5000})
    refusal = refused("POST", headers, {"localhost"})
    assert refusal is not None
    assert refusal[0] == 413


def test_a_length_is_not_taken_for_that_of_chunks() -> None:
    """A server reads chunks to their end, whatever the length says beside them."""
    chunks = {"content-length": "9", "transfer-encoding": "chunked"}
    refusal = refused("POST", Headers({"host": "localhost", **chunks}), {"localhost"})
    assert refusal is not None
    assert refusal[0] == 411


def test_a_console_on_every_address_needs_to_be_told_its_names() -> None:
    assert "0.0.0.0" not in allowed_hosts("0.0.0.0")
    assert "console.example" in allowed_hosts("0.0.0.0", ["console.example"])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Console.example:8443", "console.example"),
        ("[fd00::1]:8080", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("10.0.0.1:80", "10.0.0.1"),
    ],
)
def test_a_host_is_allowed_with_or_without_a_port(given: str, name: str) -> None:
    assert name in allowed_hosts("0.0.0.0", [given])


@pytest.mark.parametrize("given", ["", "http://console.example", "a/b", "[::1", ":8080"])
def test_what_is_no_name_of_a_host_is_refused(given: str) -> None:
    with pytest.raises(ValueError):
        allowed_hosts("0.0.0.0", [given])


@pytest.mark.parametrize(
    "origin", [None, "null", "http://python.org", "http://127.0.0.1:9999", "http://[", ""]
)
def test_a_form_of_another_site_changes_nothing(origin: str | None) -> None:
    world = world_with_two()
    browser = Browser(world)
    token = browser.token("/transactions/abort", id="etl")
    form = {"token": token, "id": "etl", "seen": "7/0/1000"}
    assert browser.post("/transactions/abort", form, origin).status_code == 403
    assert not world.aborts


@pytest.mark.parametrize("path", [*DEEDS, *CHANGES])
def test_no_form_is_taken_without_the_token_of_its_session(path: str) -> None:
    world = world_with_two()
    ours, theirs = Browser(world), Browser(world)
    ours.get("/transactions")
    for token in ("", "0" * 64, theirs.token("/transactions/abort", id="etl"), "é"):
        form = {"token": token, "id": "etl", "seen": "7/0/1000", "name": "orders"}
        assert ours.post(path, form).status_code == 403
    assert not world.aborts


def test_a_body_has_a_bound() -> None:
    browser = Browser(World())
    answer = browser.post("/topics/produce", {"value": "a" * (BODY_BYTES_MAX + 1)})
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_what_anyone_may_send_before_a_login_is_short(path: str) -> None:
    browser = Browser(World(), SCRAM)
    assert browser.post(path, {"password": "a" * 20_000}).status_code == 413


async def test_a_browser_that_goes_in_the_midst_of_a_form_is_no_failure() -> None:
    address = BASE.removeprefix("http://").encode()
    headers = [(b"host", address), (b"origin", BASE.encode()), (b"content-length", b"9")]
    request = {"type": "http", "method": "POST", "path": "/login", "query_string": b""}

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        """Send to no one."""

    await Browser(World(), SCRAM).app({**request, "headers": headers}, receive, send)


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_forbids_scripts_and_frames_of_others(path: str) -> None:
    headers = Browser(world_with_two()).get(path, name="orders", id="etl").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [*PAGES, *CHANGES])
def test_no_page_has_a_script_or_style_of_its_own(path: str) -> None:
    page = Browser(world_with_two()).get(path, name="orders", id="etl").text
    assert "<style" not in page and " style=" not in page and " onclick=" not in page
    assert page.count("<script") == page.count("<script src=")


def test_static_files_come_with_their_licences() -> None:
    browser = Browser(World())
    from magnetar import __version__

    for name in ("htmx.min.js", "htmx.LICENSE", "uPlot.iife.min.js", "uPlot.LICENSE"):
        assert browser.get(f"/static/{__version__}/{name}").status_code == 200
    assert browser.get(f"/static/{__version__}/../app.py").status_code == 404


def test_a_cluster_with_users_wants_a_login_and_then_asks_as_that_user() -> None:
    world = world_with_two()
    world.users["ada"] = "secret"
    browser = Browser(world, SCRAM)
    with browser.client:
        answer = browser.get("/transactions", filter="etl")
        assert answer.url.path == "/login" and "etl" not in answer.text.partition("<form")[0]
        token = browser.token("/login")
        wrong = {"token": token, "username": "ada", "password": "wrong", "next": "/groups"}
        answer = browser.post("/login", wrong)
        assert answer.status_code == 401 and "refused" in answer.text
        # The second attempt still leads to the page that was asked for.
        assert 'name="next" value="/groups"' in answer.text
        answer = browser.post("/login", {**wrong, "password": "secret"})
        assert answer.url.path == "/groups" and "ada" in answer.text
        # A stream is refused, not redirected: a script would take the page for an event.
        browser.post("/logout", {"token": browser.token("/transactions")})
        headers = {"Accept": "text/event-stream"}
        assert browser.client.get("/transactions", headers=headers).status_code == 401


def test_a_login_goes_on_to_pages_of_this_console_alone() -> None:
    world = World(users={"ada": "secret"})
    for address in ("//evil.invalid/", "/\\evil.invalid", "http://python.org", "javascript:1"):
        browser = Browser(world, SCRAM)
        with browser.client:
            form = {"token": browser.token("/login"), "username": "ada", "password": "secret"}
            answer = browser.post("/login", {**form, "next": address})
        assert str(answer.url) == f"{BASE}/transactions"


def test_a_login_gets_a_new_session_and_is_forgotten_when_it_is_not_used() -> None:
    now = [0.0]
    world = World(users={"ada": "secret"})
    sessions = Sessions(lambda security: FakeClient(world), SCRAM, lambda: now[0])
    planted = sessions.of(None)
    session = sessions.log_in("ada", "secret")
    assert session.id != planted.id and sessions.of(planted.id).access is None
    assert sessions.of(session.id).access is session.access
    now[0] += 9 * 3600
    assert sessions.of(session.id).access is None
    sessions.close()


def test_without_users_all_browsers_share_one_access() -> None:
    sessions = Sessions(lambda security: FakeClient(World()), PLAINTEXT)
    one, other = sessions.of(None), sessions.of(None)
    assert one.access is other.access and one.csrf_token != other.csrf_token
    sessions.close()


def test_who_may_see_little_sees_that() -> None:
    world = world_with_two()
    world.forbidden = {DescribeProducersRequest, DescribeLogDirsRequest, DescribeConfigsRequest}
    browser = Browser(world)
    page = browser.text("/transactions")
    assert "etl" in page and "TOPIC_AUTHORIZATION_FAILED" in page
    assert "etl" in browser.text("/transactions/one", id="etl")
    page = browser.text("/topics/one", name="orders")
    assert "4 wait" in page
    assert browser.get("/topics/configs", name="orders").status_code == 409


def test_after_a_logout_nothing_is_asked_for_that_user() -> None:
    access = Access(lambda: FakeClient(World()))
    assert access.ask(lambda client: client.node_ids) == [1]
    access.close()
    with pytest.raises(NotLetIn, match="log in again"):
        access.ask(lambda client: client.node_ids)
