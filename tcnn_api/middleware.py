"""ASGI middleware that every request passes through: nothing here buffers a body or waits for a whole response."""

import asyncio
import re
import time
import uuid

import structlog
from prometheus_client import CollectorRegistry, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tcnn_api import errors
from tcnn_api.errors import TooLarge, TooSlow
from tcnn_api.responses.head import METHODS
from tcnn_api.settings import ApiSettings

log = structlog.get_logger("tcnn.api")

ROUTINE = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: no line of the log unless something is wrong."""
UPLOADS = frozenset({"/datasets", "/checkpoints", "/weights"})
PICTURES = re.compile(r"/jobs/[^/]+/(attention/images|predict)")
PICTURE = 32 << 20
"""Bytes of one picture that is looked at."""
FORM = 1 << 20
"""Bytes that the form around an upload may take; the route itself looks at the file's size."""
SILENCE = 30.0
"""Seconds for which the next part of a body is waited for."""
SLOWEST = 1024
"""Bytes a second of a body, over all of it, beside the first silence."""
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Set unless a route has set its own."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Observe:
    """Outermost: the request's id in and out, security headers, one log line, one observation of the histogram.

    The histogram holds the time to the first byte, so that downloads and event streams do not blur it.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self.app = app
        self.seconds = Histogram(
            "tcnn_http_request_seconds",
            "Time until the response begins.",
            ("method", "route", "status"),
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status, first = 0, 0.0

        async def relay(message: Message) -> None:
            nonlocal status, first
            if message["type"] == "http.response.start":
                status, first = message["status"], time.perf_counter() - started
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, relay)
        except asyncio.CancelledError:  # the server leaves, and has closed the connection: nobody is to be told
            log.info("cut off, for the server leaves")
        except Exception:
            log.exception("unforeseen")
            if status:
                raise  # half a response is out: the server closes the connection
            await errors.problem(scope["path"], 500)(scope, receive, relay)
        finally:
            self._note(scope, status, first, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, first: float, total: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self.seconds.labels(method, route, str(status)).observe(first or total)
        state = scope["state"]
        tell = log.debug if route in ROUTINE and status < 400 else log.info
        tell(
            "request",
            method=scope["method"],
            path=scope["path"],
            route=route,
            status=status,
            seconds=round(total, 4),
            tenant=state.get("tenant"),
            key=state.get("key"),
            job=state.get("job"),
            client=(scope.get("client") or ("",))[0],
        )


class LimitBody:
    """Cuts a body off at its limit, by its announced length or while it is being read, and one that hardly comes."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, advice = self._limit(scope["path"])
        refusal = TooLarge(f"body: expected at most {limit:,} bytes; send less{advice}")
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > limit:
            await errors.respond(scope["path"], refusal)(scope, receive, send)
            return
        read, waited, ended = 0, 0.0, False

        async def counted() -> Message:
            nonlocal read, waited, ended
            if ended:
                return await receive()  # that the client leaves; for which a stream waits as long as it takes
            begun = time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), SILENCE)
            except TimeoutError:
                raise TooSlow(f"body: expected some of it within {SILENCE:g} s, found nothing; send it again") from None
            waited += time.monotonic() - begun
            ended = not message.get("more_body", False)
            if waited > SILENCE + read / SLOWEST:
                raise TooSlow(f"body: expected {SLOWEST:,} bytes a second, found less; send it over a better line")
            read += len(message.get("body", b""))
            if read > limit:
                raise refusal  # where the body is read; the app's handler of our errors answers
            return message

        await self.app(scope, counted, send)

    def _limit(self, path: str) -> tuple[int, str]:
        if path in UPLOADS:
            return self.settings.max_upload + FORM, ", or raise TCNN_MAX_UPLOAD_GB on the server"
        if PICTURES.fullmatch(path):
            return PICTURE, ""
        return self.settings.max_body, ", or raise TCNN_MAX_BODY_MB on the server"
