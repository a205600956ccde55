"""Which requests get in, and what a browser may do with an answer. Pure ASGI, around the app.

A page of another site can make a browser send requests here. Host names one of ours, else a name
that was rebound to this address (DNS rebinding) would pass for the same site. A POST comes from a
page of ours, which Origin says; the forms' tokens are checked behind this. A body has a bound. The
answer's headers allow scripts, styles and connections of this server alone, and no frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: A form with a record's key and value.
BODY_BYTES_MAX = 4 << 20
_LENGTH_DIGITS_MAX = 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READS = ("GET", "HEAD")
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it a form's Origin would be `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Lets in requests for `hosts`, names without ports."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "Cache-Control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = refused(scope["method"], Headers(scope=scope), self._hosts)
        if refusal is None:
            return await self._app(scope, _bounded(receive), send_with_headers)
        status, reason = refusal
        await PlainTextResponse(f"{reason}\n", status)(scope, receive, send_with_headers)


def host_name(text: str) -> str:
    """Return the name in `NAME` or `NAME:PORT`, or an address. Raises ValueError: it is none."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    name = urlsplit(f"//{text}").hostname
    if name is None or any(each in text for each in "/@?# "):
        raise ValueError(f"{text!r} is no name of a host.")
    return name


def allowed_hosts(listen: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names under which the console answers, for an address it listens on.

    Raises ValueError: one of `more` is no name.
    """
    # What listens on every address has no name of its own: `more` says which it is reached by.
    everywhere = ("", "0.0.0.0", "::")  # noqa: S104  # compared with
    own = () if listen in everywhere else (listen,)
    return frozenset((*_LOOPBACK, *own, *map(host_name, more)))


def refused(method: str, headers: Headers, hosts: Collection[str]) -> tuple[int, str] | None:
    """Return status and reason of a request that does not get in; None: it does."""
    host = headers.get("host", "")
    name = _name(f"//{host}")
    if name is None or name not in hosts:
        return 421, (
            f"The console does not answer for the host {name or host!r}."
            " --allow-host names one more."
        )
    if method in _READS:
        return None
    length = headers.get("content-length", "")
    # Beside it chunks would count, whose length is not known.
    if not length.isascii() or not length.isdigit() or "transfer-encoding" in headers:
        return 411, "A form has a Content-Length, and no Transfer-Encoding."
    # A longer number would be no smaller, and Python reads no more than 4300 digits.
    if len(length) > _LENGTH_DIGITS_MAX or int(length) > BODY_BYTES_MAX:
        return 413, f"A form has at most {BODY_BYTES_MAX >> 20} MiB."
    # Browsers send Origin with every POST; what is no browser sends none, and has no cookie either.
    if _place(headers.get("origin", "")) != host.lower():
        return 403, "This form was sent from a page of another site."
    return None


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _place(origin: str) -> str | None:
    """Return host and port of an origin; None: it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _bounded(receive: Receive) -> Receive:
    """Return `receive` that ends a request whose body is longer than it may be."""
    left = BODY_BYTES_MAX

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                return {"type": "http.disconnect"}
        return message

    return receive_bounded
