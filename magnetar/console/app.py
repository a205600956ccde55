"""The application: which handler answers which address, logins, static files, failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from magnetar import __version__
from magnetar.client import ClientError
from magnetar.client.security import Security
from magnetar.console.guard import Guard
from magnetar.console.pages import (
    access,
    configs,
    groups,
    messages,
    nodes,
    producing,
    topics,
    transactions,
)
from magnetar.console.screens import (
    SESSION_COOKIE,
    Handler,
    Screen,
    Screens,
    Settings,
    Visit,
    keep_session,
    read_form,
)
from magnetar.console.sessions import Connect, Sessions

_STATIC = Path(__file__).parent / "static"

#: What a GET shows.
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
#: What a POST does.
DEEDS: dict[str, Handler] = {
    "/transactions/abort": transactions.abort,
    "/transactions/hanging": transactions.abort_hanging,
    "/topics/produce": producing.send,
}
#: What a GET downloads.
FILES: dict[str, Callable[[Visit], bytes]] = {"/topics/value": messages.raw}


def build_app(
    connect: Connect, security: Security, settings: Settings, hosts: Iterable[str]
) -> Starlette:
    """Return the application. `hosts`: the names, without ports, that it answers for."""
    sessions = Sessions(connect, security)
    screens = Screens(sessions, settings)
    login = _Login(sessions, screens)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sessions.begin()
        yield
        await run_in_threadpool(sessions.close)

    async def failed(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)
        message = f"{request.url.path}: {failure.detail}."
        return screens.failure(
            request, screens.session(request), ClientError(message), failure.status_code
        )

    async def broken(request: Request, failure: Exception) -> Response:
        # The server logs the failure with its traceback; a visitor is told that there is one.
        message = f"{request.url.path}: the console failed, and its log says where."
        return screens.failure(request, screens.session(request), ClientError(message), 500)

    async def home(request: Request) -> Response:
        return RedirectResponse("/transactions", 303)

    routes = [
        Route("/", home),
        Route("/login", login.form),
        Route("/login", login.submitted, methods=["POST"]),
        Route("/logout", login.out, methods=["POST"]),
        *[Route(path, screens.page(handler)) for path, handler in PAGES.items()],
        *[Route(path, screens.deed(handler), methods=["POST"]) for path, handler in DEEDS.items()],
        *[Route(path, screens.file(handler)) for path, handler in FILES.items()],
        Mount(f"/static/{__version__}", _Files(directory=_STATIC)),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=tuple(hosts))],
        exception_handlers={HTTPException: failed, Exception: broken},
    )


class _Files(StaticFiles):
    """Static files; their addresses have the version, so browsers may keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response


class _Login:
    """The login of a Kafka user."""

    def __init__(self, sessions: Sessions, screens: Screens) -> None:
        self._sessions = sessions
        self._screens = screens

    async def form(self, request: Request) -> Response:
        if not self._sessions.wants_login:
            return RedirectResponse("/", 303)
        return await run_in_threadpool(self._show, request, request.query_params.get("next", ""))

    async def submitted(self, request: Request) -> Response:
        form = await read_form(request)
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
        response = RedirectResponse(_own_address(wanted), 303)
        keep_session(response, logged_in.id)
        return response

    async def out(self, request: Request) -> Response:
        form = await read_form(request)
        session = self._screens.session(request)
        if self._sessions.is_token(session, form.get("token", "")):
            await run_in_threadpool(self._sessions.log_out, session.id)
        response = RedirectResponse("/", 303)
        response.delete_cookie(SESSION_COOKIE)
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
    """Return an address of this console. Another site's is not followed."""
    # Browsers take `//` and `/\` at the beginning for another host.
    is_own = address.startswith("/") and address[1:2] not in ("/", "\\")
    return address if is_own and address.isprintable() else "/"
