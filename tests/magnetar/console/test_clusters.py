"""Several clusters in one console: pages, logins and forms of each stay apart."""

from __future__ import annotations

from starlette.testclient import TestClient

from magnetar.client.security import PLAINTEXT
from magnetar.console.app import build_app
from magnetar.console.screens import Settings
from tests.magnetar.console.browser import BASE, HOSTS, SCRAM, cluster
from tests.magnetar.console.fake_cluster import World

ROOTS = [("production", "/c/production"), ("here", "/c/here")]


def client(production: World, here: World) -> TestClient:
    """Return a browser at a console of two clusters; the first wants logins."""
    settings = [
        Settings("127.0.0.1:9092", name=name, root=root, others=ROOTS) for name, root in ROOTS
    ]
    app = build_app(
        [cluster(production, SCRAM, settings[0]), cluster(here, PLAINTEXT, settings[1])], HOSTS
    )
    return TestClient(app, base_url=BASE, headers={"Origin": BASE})


def two() -> tuple[World, World]:
    production, here = World(users={"ada": "secret"}), World()
    production.partition("invoices")
    here.partition("orders")
    return production, here


def log_in(browser: TestClient) -> None:
    page = browser.get("/c/production/login").text
    token = page.partition('name="token" value="')[2].partition('"')[0]
    form = {"token": token, "username": "ada", "password": "secret", "next": "/topics"}
    answer = browser.post("/c/production/login", data=form)
    assert answer.url.path == "/c/production/topics" and "invoices" in answer.text


def test_each_cluster_has_pages_of_its_own_and_links_stay_in_it() -> None:
    with client(*two()) as browser:
        page = browser.get("/c/here/topics").text
        assert "orders" in page and "invoices" not in page
        main = page.partition("<body>")[2]
        links = [each.partition('"')[0] for each in main.split(' href="')[1:]]
        apart = [each for each in links if not each.startswith(("/c/here/", "#"))]
        assert apart == ["/c/production/topics"]
        assert browser.get("/c/here/").url.path == "/c/here/transactions"
        assert browser.get("/c/none/topics").status_code == 404
        missing = browser.get("/c/here/none")
        assert missing.status_code == 404 and 'href="/c/here/' in missing.text


def test_a_login_is_of_one_cluster_and_its_cookie_goes_to_no_other() -> None:
    with client(*two()) as browser:
        assert browser.get("/").url.path == "/c/production/login"
        assert browser.get("/c/here/topics").status_code == 200
        asked = browser.get("/c/production/topics/one", params={"name": "invoices"})
        assert asked.url.path == "/c/production/login"
        assert 'name="next" value="/topics/one?name=invoices"' in asked.text
        log_in(browser)
        paths = {each.path for each in browser.cookies.jar if each.name == "magnetar-console"}
        assert paths == {"/c/production", "/c/here"}
        assert "ada" not in browser.get("/c/here/topics").text.partition("<main")[0]


def test_a_form_of_one_cluster_is_not_taken_by_another() -> None:
    production, here = two()
    here.partition("invoices")
    with client(production, here) as browser:
        log_in(browser)
        page = browser.get("/c/here/topics/delete", params={"name": "invoices"}).text
        token = page.partition('name="token" value="')[2].partition('"')[0]
        form = {"token": token, "name": "invoices", "answer": "invoices"}
        assert browser.post("/c/production/topics/delete", data=form).status_code == 403
        assert "invoices" in production.topics
        assert "<strong>here</strong>" in page.partition("<main")[2]
