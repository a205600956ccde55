"""The console's web application: addresses with their handlers, logins, files, error pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from magnetar import __version__
from magnetar.client import ClientError
from magnetar.client.security import Security
from magnetar.console.changes import Change, done, shown
from magnetar.console.guard import Guard
from magnetar.console.pages import (
    access,
    access_changes,
    config_changes,
    configs,
    group_changes,
    groups,
    messages,
    nodes,
    producing,
    topic_changes,
    topics,
    transactions,
)
from magnetar.console.screens import Handler, Screen, Screens, Settings, Visit, read_form
from magnetar.console.sessions import Connect, Sessions

_STATIC = Path(__file__).parent / "static"
#: The longest form that is read before a login: anyone may send any number of them.
_LOGIN_BYTES_MAX = 16 << 10

#: The page that a GET of the address shows.
PAGES: dict[str, Handler] = {
    "/transactions": transactions.overview,
    "/transactions/ids": transactions.ids,
    "/transactions/hanging": transactions.hanging,
    "/transactions/one": transactions.one,
    "/transactions/abort": transactions.abort_form,
    "/groups": groups.overview,
    "/groups/one": groups.one,
    "/topics": topics.overview,
    "/topics/one": topics.one,
    "/topics/messages": messages.overview,
    "/topics/message": messages.one,
    "/topics/outcomes": topics.outcomes,
    "/topics/groups": topics.groups,
    "/topics/configs": configs.of_topic,
    "/topics/produce": producing.form,
    "/configs": configs.overview,
    "/access": access.overview,
    "/nodes": nodes.overview,
}
#: The action that a POST to the address performs.
DEEDS: dict[str, Handler] = {
    "/transactions/abort": transactions.abort,
    "/transactions/hanging": transactions.abort_hanging,
    "/topics/produce": producing.send,
}
#: A GET of the address shows the change's form, and a POST to the same address performs the change.
CHANGES: dict[str, Change] = {
    "/topics/create": topic_changes.CREATE,
    "/topics/delete": topic_changes.DELETE,
    "/topics/partitions": topic_changes.PARTITIONS,
    "/topics/trim": topic_changes.TRIM,
    "/configs/change": config_changes.CHANGE,
    "/groups/reset": group_changes.RESET,
    "/groups/delete": group_changes.DELETE,
    "/groups/offsets": group_changes.DELETE_OFFSETS,
    "/groups/member": group_changes.REMOVE_MEMBER,
    "/access/rule": access_changes.ADD_RULE,
    "/access/rule/delete": access_changes.DELETE_RULE,
    "/access/user": access_changes.SET_PASSWORD,
    "/access/user/delete": access_changes.DELETE_USER,
    "/access/quota": access_changes.SET_QUOTA,
    "/access/quota/delete": access_changes.REMOVE_QUOTA,
}
#: The file that a GET of the address downloads.
FILES: dict[str, Callable[[Visit], bytes]] = {"/topics/value": messages.raw}


@dataclass(frozen=True)
class Cluster:
    """A cluster that the console shows: how to connect to it, and the settings of its pages."""

    connect: Connect
    security: Security
    settings: Settings


def build_app(clusters: Sequence[Cluster], hosts: Iterable[str]) -> Starlette:
    """Return the application. It answers requests for these `hosts` alone (names without ports).

    Each cluster has its own pages, logins and connections. Only the switch in the page header leads
    from one cluster to another.
    """
    served = [_Served(each) for each in clusters]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for each in served:
            each.sessions.begin()
        yield
        for each in served:
            await run_in_threadpool(each.sessions.close)

    def screens_of(path: str) -> Screens:
        found = (each.screens for each in served if path.startswith(f"{each.root}/"))
        return next(found, served[0].screens)

    async def failed(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)
        screens = screens_of(request.url.path)
        message = f"{request.url.path}: {failure.detail}."
        return screens.failure(
            request, screens.session(request), ClientError(message), failure.status_code
        )

    async def broken(request: Request, failure: Exception) -> Response:
        # The server logs the traceback. The visitor is told only that the console failed.
        screens = screens_of(request.url.path)
        message = f"{request.url.path}: the console failed. Its log has the details."
        return screens.failure(request, screens.session(request), ClientError(message), 500)

    async def gone(request: Request, _: Exception) -> Response:
        # No one reads it: the browser has gone in the midst of its form.
        return Response(status_code=400)

    async def home(request: Request) -> Response:
        return RedirectResponse(f"{served[0].root}/transactions", 303)

    pages = [Mount(each.root, routes=each.routes()) for each in served]
    return Starlette(
        routes=[
            Route("/", home),
            Mount(f"/static/{__version__}", _Files(directory=_STATIC)),
            *pages,
        ],
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=tuple(hosts))],
        exception_handlers={HTTPException: failed, ClientDisconnect: gone, Exception: broken},
    )


class _Served:
    """The pages of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.root = cluster.settings.root
        self.sessions = Sessions(cluster.connect, cluster.security)
        self.screens = Screens(self.sessions, cluster.settings)

    def routes(self) -> list[BaseRoute]:
        screens, login = self.screens, _Login(self.sessions, self.screens)

        async def home(request: Request) -> Response:
            return screens.to("/transactions")

        def change(path: str, change: Change) -> list[BaseRoute]:
            return [
                Route(path, screens.page(shown(change))),
                Route(path, screens.deed(done(change)), methods=["POST"]),
            ]

        return [
            Route("/", home),
            Route("/login", login.form),
            Route("/login", login.submitted, methods=["POST"]),
            Route("/logout", login.out, methods=["POST"]),
            *[Route(path, screens.page(handler)) for path, handler in PAGES.items()],
            *[Route(path, screens.deed(each), methods=["POST"]) for path, each in DEEDS.items()],
            *[Route(path, screens.file(handler)) for path, handler in FILES.items()],
            *[route for path, each in CHANGES.items() for route in change(path, each)],
        ]


class _Files(StaticFiles):
    """Static files. Their addresses contain the version, so browsers may cache them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response


class _Login:
    """The pages on which a Kafka user logs in and out."""

    def __init__(self, sessions: Sessions, screens: Screens) -> None:
        self._sessions = sessions
        self._screens = screens

    async def form(self, request: Request) -> Response:
        if not self._sessions.wants_login:
            return self._screens.to("/")
        return await run_in_threadpool(self._show, request, request.query_params.get("next", ""))

    async def submitted(self, request: Request) -> Response:
        form = await read_form(request, _LOGIN_BYTES_MAX)
        wanted = form.get("next", "")
        session = self._screens.session(request)
        if not self._sessions.is_token(session, form.get("token", "")):
            return await run_in_threadpool(
                self._show, request, wanted, "The form was too old. Try again."
            )
        username = form.get("username", "")
        try:
            logged_in = await run_in_threadpool(
                self._sessions.log_in, username, form.get("password", "")
            )
        except ClientError as failure:
            return await run_in_threadpool(self._show, request, wanted, str(failure), username)
        response = self._screens.to(_own_address(wanted))
        self._screens.keep(response, logged_in.id)
        return response

    async def out(self, request: Request) -> Response:
        form = await read_form(request, _LOGIN_BYTES_MAX)
        session = self._screens.session(request)
        if self._sessions.is_token(session, form.get("token", "")):
            await run_in_threadpool(self._sessions.log_out, session.id)
        response = self._screens.to("/")
        self._screens.forget(response)
        return response

    def _show(
        self, request: Request, wanted: str, message: str = "", username: str = ""
    ) -> Response:
        values = {
            "message": message,
            "name": username,
            "next": _own_address(wanted),
            "mechanism": self._sessions.security.mechanism,
        }
        screen = Screen("login.html", values, "Log in", status=401 if message else 200)
        session = self._screens.session(request)
        return self._screens.show(request, session, screen)


def _own_address(address: str) -> str:
    """Return `address` if it is a path of this console, else `/`: never lead to another site."""
    # An address that begins with `//` or `/\` leads browsers to another host.
    is_own = address.startswith("/") and address[1:2] not in ("/", "\\")
    return address if is_own and address.isprintable() else "/"
