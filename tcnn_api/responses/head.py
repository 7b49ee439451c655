"""`HEAD`: every route of `GET` answers it with the same status and headers and no body (RFC 9110, §9.1 and §9.3.2), as
monitors and link checkers expect that ask whether a server or a file is there.

The route itself runs, with its authentication, scopes, limits and refusals, up to where the body would begin; what
comes after that is cut off: an event stream, which has no end, a log, an archive that is made while it is sent. Work
that takes long before that is not begun for a head either: such a route calls `answer_head` when it knows that there
will be an answer. A route that answers HEAD itself is left to do so, as downloads are, which open no file for it.

And a 405, whose `Allow` has all methods of a path, HEAD among them: each has a route of its own, and Starlette lists
those of the first.
"""

from collections.abc import Mapping

from anyio import CancelScope
from anyio.lowlevel import checkpoint
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})
_ASKED = "head"
"""In a request's state: only the head of the answer is asked for."""


class _HeadOnly(Exception):
    """The head of an answer is known, and nothing else is wanted."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers


def answer_head(
    request: Request, media_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> None:
    """Where only the head is asked for, answer 200 here, by an exception, before work that takes a process and seconds.

    The answer has no Content-Length, which a server may leave out of a head where only the content would tell it.
    """
    if getattr(request.state, _ASKED, False):
        raise _HeadOnly({"content-type": media_type, **(headers or {})})


class AnswerHead:
    """Innermost, after authentication, which knows that HEAD looks and changes nothing; the log says HEAD, too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def relay(message: Message) -> None:
            if message.get("status") == 405:
                MutableHeaders(scope=message)["Allow"] = ", ".join(_allowed(scope))
            await send(message)

        await (self._head if scope["method"] == "HEAD" else self.app)(scope, receive, relay)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the route of HEAD answers, or else the route of GET."""
        asked, refused = {**scope, "method": "GET"}, False

        async def unless_refused(message: Message) -> None:
            nonlocal refused
            refused = refused or message.get("status") == 405
            if not refused:
                await send(message)

        await self.app(scope, receive, unless_refused)  # no route has run if it is refused
        if refused:
            await self._as_get(asked, receive, send)
            scope["route"] = asked.get("route")

    async def _as_get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What GET answers, up to its body. The method is another one in a scope of its own: whoever sends looks at the
        first one's.
        """
        scope["state"][_ASKED] = True
        with CancelScope() as rest:

            async def head(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await _send(send, message)
                    rest.cancel()
                    await checkpoint()  # where it ends

            try:
                await self.app(scope, receive, head)
            except _HeadOnly as answer:
                raw = Headers(answer.headers).raw
                await _send(send, {"type": "http.response.start", "status": 200, "headers": list(raw)})


def _allowed(scope: Scope) -> list[str]:
    """The methods of a path."""

    def has(method: str) -> bool:
        asked = {**scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in scope["app"].routes)

    found = {method for method in METHODS if has(method)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


async def _send(send: Send, start: Message) -> None:
    await send(start)
    await send({"type": "http.response.body", "body": b""})
