"""A handler's result as a page, and the same page's changes as a stream of events.

A handler is a plain function that asks the cluster and returns a Screen. It runs in a thread, since
the client blocks. The same address answers a browser with a whole page, and its live part, which
asks for an event stream, with the new content of `<main>` each time that it has changed.

While the cluster does not answer, or refuses, the stream says so in an event `lost` and the page
stays as it was; an event `back` takes the notice away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from magnetar.client import Client, ClientError, NotFound, NotLetIn, Refused, Unreachable
from magnetar.console.refusals import explained
from magnetar.console.registry import Registry
from magnetar.console.sessions import Access, Session, Sessions
from magnetar.console.templating import link, render
from wire.error_code import ErrorCode

#: How often a live page asks the cluster again.
TICK_S = 2.0
#: A stream that sends nothing for so long sends an empty comment: proxies end silent connections.
_SILENCE_TICKS = 7
#: Live pages at once; each asks the cluster every tick.
STREAMS_MAX = 64
SESSION_COOKIE = "magnetar-console"
THEME_COOKIE = "magnetar-theme"
_THEMES = ("light", "dark")
_FORM_FIELDS_MAX = 50
T = TypeVar("T")


@dataclass
class Screen:
    """What a handler found, and the template that shows it."""

    template: str
    values: dict[str, Any]
    title: str
    is_live: bool = False
    status: int = 200
    silent: Sequence[int] = ()
    """Nodes that did not answer, and whose part is missing."""


@dataclass
class Elsewhere:
    """The answer to a form: look at this address."""

    address: str


@dataclass
class Settings:
    """What holds for all pages of one cluster."""

    cluster: str
    read_only: bool = False
    registry: Registry | None = None
    tick_s: float = TICK_S
    name: str = ""
    """What visitors call the cluster, where the console has several."""
    root: str = ""
    """Where its pages begin: empty, or `/c/NAME`."""
    others: Sequence[tuple[str, str]] = ()
    """Name and root of every cluster of the console; empty if there is one."""


@dataclass
class Visit:
    """One request, as a handler sees it."""

    access: Access
    settings: Settings
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    """Nodes that `look` has left out."""

    def look(self, question: Callable[[Client], T]) -> T:
        """Return what a question finds, without the nodes that do not answer."""

        def ask(client: Client) -> T:
            self.silent |= client.left_out
            return question(client)

        return self.access.look(ask)

    def number(self, name: str, default: int, *, lowest: int = 0, highest: int = 2**62) -> int:
        """Return a number of the query within bounds; the default for what is no number."""
        number = whole_number(self.query.get(name, "").strip())
        return default if number is None else min(max(number, lowest), highest)

    def explained(self, failure: ClientError) -> str:
        """Return a failure in words for this visitor."""
        return explained(failure, self.access.username)


def whole_number(text: str) -> int | None:
    """Return the whole number that a visitor has typed; None: it is none."""
    digits = text.removeprefix("-")
    # `isdigit` alone takes digits of every script and texts of any length.
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return None
    return int(text)


class Forbidden(ClientError):
    """The console itself does not do that."""


class OutcomeUnknown(ClientError):
    """The cluster stopped answering while something was done."""


@contextmanager
def uncertain() -> Iterator[None]:
    """Say of a deed that the cluster did not answer that it may have been done."""
    try:
        yield
    except Unreachable as failure:
        raise OutcomeUnknown(
            f"{failure} Whether it was done is not known: look before you try again."
        ) from None


Handler = Callable[[Visit], Screen | Elsewhere]


class Screens:
    """Turns handlers into endpoints."""

    def __init__(self, sessions: Sessions, settings: Settings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._streams = 0

    def page(self, handler: Handler) -> Callable[[Request], Any]:
        """Return the endpoint of a page: a GET, which changes nothing."""

        async def endpoint(request: Request) -> Response:
            session = self.session(request)
            if session.access is None:
                return self._to_login(request)
            visit = self._visit(request, session.access)
            if "text/event-stream" in request.headers.get("accept", ""):
                events = self._events(request, handler, visit, session)
                return StreamingResponse(events, media_type="text/event-stream")
            return await self._answered(request, handler, visit, session)

        return endpoint

    def deed(self, handler: Handler) -> Callable[[Request], Any]:
        """Return the endpoint of a form that changes something in the cluster."""

        async def endpoint(request: Request) -> Response:
            session = self.session(request)
            if session.access is None:
                return self._to_login(request)
            if self._settings.read_only:
                return self.failure(request, session, Forbidden("This console is read-only."))
            form = await read_form(request)
            if not self._sessions.is_token(session, form.get("token", "")):
                mistake = "This form is not of this session. Load the page again."
                return self.failure(request, session, Forbidden(mistake))
            visit = self._visit(request, session.access)
            visit.form = form
            return await self._answered(request, handler, visit, session)

        return endpoint

    def file(self, read: Callable[[Visit], bytes]) -> Callable[[Request], Any]:
        """Return the endpoint of bytes, which browsers save and never show."""

        async def endpoint(request: Request) -> Response:
            session = self.session(request)
            if session.access is None:
                return self._to_login(request)
            try:
                data = await run_in_threadpool(read, self._visit(request, session.access))
            except ClientError as failure:
                return await run_in_threadpool(self.failure, request, session, failure)
            headers = {"Content-Disposition": "attachment; filename=value.bin"}
            return Response(data, media_type="application/octet-stream", headers=headers)

        return endpoint

    def show(self, request: Request, session: Session, screen: Screen) -> HTMLResponse:
        """Return a screen as a whole page."""
        page = self._render(screen, self._values(request, session, screen, "page.html"))
        response = HTMLResponse(page, screen.status)
        if session.is_new:
            self.keep(response, session.id)
        return response

    def keep(self, response: Response, session_id: str) -> None:
        """Give a session to the browser: no script reads it, no form of another site sends it."""
        response.set_cookie(
            SESSION_COOKIE, session_id, httponly=True, samesite="lax", path=self._home
        )

    def forget(self, response: Response) -> None:
        """Take the session from the browser."""
        response.delete_cookie(SESSION_COOKIE, path=self._home)

    def to(self, address: str) -> RedirectResponse:
        """Send the browser to an address of this cluster."""
        return RedirectResponse(self._settings.root + address, 303)

    def failure(
        self,
        request: Request,
        session: Session,
        failure: ClientError,
        status: int | None = None,
        silent: Collection[int] = (),
    ) -> HTMLResponse:
        """Return a failure as a page; one that may pass by itself is live."""
        is_passing = isinstance(failure, Unreachable) and request.method == "GET"
        username = None if session.access is None else session.access.username
        title = "Not done" if request.method == "POST" else "Not shown"
        if isinstance(failure, OutcomeUnknown):
            title = "Perhaps done"
        elif is_passing:
            title = "A node does not answer" if silent else "The cluster does not answer"
        values = {
            "message": explained(failure, username),
            "is_passing": is_passing,
            "heading": title,
        }
        status = status or status_of(failure)
        screen = Screen("failure.html", values, title, is_passing, status, sorted(silent))
        return self.show(request, session, screen)

    def session(self, request: Request) -> Session:
        """Return the session of a request."""
        return self._sessions.of(request.cookies.get(SESSION_COOKIE))

    async def _answered(
        self, request: Request, handler: Handler, visit: Visit, session: Session
    ) -> Response:
        try:
            found = await run_in_threadpool(handler, visit)
        except ClientError as failure:
            return await run_in_threadpool(
                self.failure, request, session, failure, None, visit.silent
            )
        if isinstance(found, Elsewhere):
            return self.to(found.address)
        found.silent = sorted(visit.silent)
        return await run_in_threadpool(self.show, request, session, found)

    async def _events(
        self, request: Request, handler: Handler, visit: Visit, session: Session
    ) -> AsyncIterator[str]:
        """Yield the page's changes. Beyond STREAMS_MAX a page says that it waits for its turn."""
        must_wait = self._streams >= STREAMS_MAX
        if must_wait:
            yield _lost(f"{STREAMS_MAX} pages are live already; it waits for one to close.")
        while self._streams >= STREAMS_MAX:
            yield ": waiting\n\n"
            await asyncio.sleep(self._settings.tick_s)
            if await _is_over(request, visit):
                return
        # No await since the last look: of all that wait, one takes the place.
        self._streams += 1
        try:
            if must_wait:
                yield _event("{}", "back")
            async for event in self._changes(request, handler, visit, session):
                yield event
        finally:
            self._streams -= 1

    async def _changes(
        self, request: Request, handler: Handler, visit: Visit, session: Session
    ) -> AsyncIterator[str]:
        def look() -> str:
            visit.silent = frozenset()
            screen = handler(visit)
            assert isinstance(screen, Screen), "only pages are live"
            screen.silent = sorted(visit.silent)
            values = self._values(request, session, screen, "fragment.html")
            return self._render(screen, values)

        last, is_lost, silence = "", False, 0
        while not await _is_over(request, visit):
            silence += 1
            try:
                fragment = await run_in_threadpool(look)
            except ClientError as failure:
                if not is_lost:
                    is_away = isinstance(failure, Unreachable)
                    yield _lost(visit.explained(failure), is_away=is_away)
                is_lost, silence = True, 0
            else:
                if is_lost:
                    yield _event("{}", "back")
                if fragment != last:
                    yield _event(fragment)
                    silence = 0
                last, is_lost = fragment, False
            if silence > _SILENCE_TICKS:
                yield ": at work\n\n"
                silence = 0
            await asyncio.sleep(self._settings.tick_s)

    def _visit(self, request: Request, access: Access) -> Visit:
        return Visit(access, self._settings, request.path_params, request.query_params)

    def _to_login(self, request: Request) -> Response:
        if request.method != "GET" or "text/event-stream" in request.headers.get("accept", ""):
            return Response("The session has ended: log in again.\n", 401)
        asked = self.own(request.url.path)
        if request.url.query:
            asked += f"?{request.url.query}"
        return self.to(link("/login", next=asked))

    @property
    def _home(self) -> str:
        return self._settings.root or "/"

    def own(self, path: str) -> str:
        """Return an address without the part that names the cluster."""
        return path.removeprefix(self._settings.root)

    def _render(self, screen: Screen, values: Mapping[str, Any]) -> str:
        return render(screen.template, values, self._settings.root)

    def _values(
        self, request: Request, session: Session, screen: Screen, layout: str
    ) -> dict[str, Any]:
        theme = request.cookies.get(THEME_COOKIE, "")
        path = request.url.path
        return {
            "layout": layout,
            "title": screen.title,
            "is_live": screen.is_live,
            "silent": screen.silent,
            "address": path + (f"?{request.url.query}" if request.url.query else ""),
            "section": self.own(path).partition("/")[2].partition("/")[0],
            "cluster": self._settings.cluster,
            "cluster_name": self._settings.name,
            "clusters": self._settings.others,
            "read_only": self._settings.read_only,
            "username": session.access.username if session.access is not None else None,
            "is_in": session.access is not None,
            "token": session.csrf_token,
            "theme": theme if theme in _THEMES else "",
            **screen.values,
        }


#: The status of a failure's page; the first kind that fits.
_STATUSES: dict[type[ClientError], int] = {
    NotFound: 404,
    Forbidden: 403,
    Unreachable: 502,
    NotLetIn: 502,
    OutcomeUnknown: 502,
    Refused: 409,
}
#: Codes of a refusal that say that something is not there.
_MISSING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)


def status_of(failure: ClientError) -> int:
    """Return the HTTP status of a failure's page."""
    if isinstance(failure, Refused) and failure.code in _MISSING:
        return 404
    return next((code for kind, code in _STATUSES.items() if isinstance(failure, kind)), 400)


async def read_form(request: Request, bytes_max: int | None = None) -> dict[str, str]:
    """Return the fields of a form that a browser sent; of a name that repeats, the last.

    Raises HTTPException, without reading it, for one of more than `bytes_max`.
    """
    # There is one, which the guard has looked at.
    if bytes_max is not None and int(request.headers["content-length"]) > bytes_max:
        raise HTTPException(413)
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in fields.items()}


async def _is_over(request: Request, visit: Visit) -> bool:
    return visit.access.is_closed or await request.is_disconnected()


def _lost(reason: str, *, is_away: bool = False) -> str:
    """Return the event that says why a page stays as it is; `is_away`: the cluster is."""
    return _event(json.dumps({"reason": reason, "is_away": is_away}), "lost")


def _event(data: str, name: str = "") -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return (f"event: {name}\n" if name else "") + lines + "\n"
