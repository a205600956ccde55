"""The console over a fake cluster, as a browser meets it: cookies, Origin, tokens of forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from magnetar.client import Client, NotLetIn
from magnetar.client.security import PLAINTEXT, Security
from magnetar.console.app import Cluster, build_app
from magnetar.console.guard import allowed_hosts
from magnetar.console.screens import Settings
from tests.magnetar.console.fake_cluster import FakeClient, World

BASE = "http://127.0.0.1:8080"
SCRAM = Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "visitor", "visitor")
_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


HOSTS = allowed_hosts("127.0.0.1")


def cluster(world: World, security: Security, settings: Settings) -> Cluster:
    """Return a cluster of a console: of this world, with its users' passwords."""

    def connect(wanted: Security) -> Client:
        if wanted.has_sasl and world.users.get(wanted.username) != wanted.password:
            raise NotLetIn(f"the login of {wanted.username!r} was refused.")
        return FakeClient(world, wanted)

    return Cluster(connect, security, settings)


class Browser:
    """One browser; `with` it the console runs."""

    def __init__(self, world: World, security: Security = PLAINTEXT, **settings: Any) -> None:
        # Far apart, so that a stream's test reads one look at a time.
        self.settings = Settings("127.0.0.1:9092", tick_s=0.01, **settings)
        self.app = build_app([cluster(world, security, self.settings)], HOSTS)
        self.client = TestClient(self.app, base_url=BASE, follow_redirects=True)

    def get(self, path: str, **query: object) -> Response:
        wanted = {name: str(value) for name, value in query.items()}
        return self.client.get(path, params=wanted, headers={"Accept": "text/html"})

    def text(self, path: str, **query: object) -> str:
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.text

    def token(self, path: str, **query: object) -> str:
        """Return the token in a page's form."""
        found = _TOKEN.search(self.get(path, **query).text)
        assert found is not None
        return found[1]

    def post(self, path: str, form: Mapping[str, str], origin: str | None = BASE) -> Response:
        headers = {} if origin is None else {"Origin": origin}
        return self.client.post(path, data=dict(form), headers=headers)
