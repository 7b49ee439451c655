"""ASGI middleware for authentication by API key and authorisation by scope, before the body is read."""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tcnn.errors import TcnnError
from tcnn_api import errors
from tcnn_api.access.credentials import Memory, SharedLinks, StoredKeys
from tcnn_api.access.keys import LOCAL, Keyring, Principal, missing
from tcnn_api.connections import network
from tcnn_api.errors import Forbidden, MissingScope, TooManyKeys, Unauthorized
from tcnn_api.settings import is_loopback
from tcnn_jobs.model import accounts
from tcnn_jobs.model.accounts import SHARE_PREFIX, ApiKey, Share
from tcnn_jobs.model.operation import Actor, acting

OPEN = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json"})
"""Pages that tell nothing of any tenant, so that nobody needs a key for them; nor for what lies below /static/."""
MOST_WRONG, WINDOW = 20, 60.0
"""Wrong keys that one address may send in so many seconds."""
PASSED_ON = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers that proxies add, besides `x-forwarded-…`."""
ADDRESSES = 10_000
"""Addresses of which wrong keys are counted."""
LOOKS = frozenset({"GET", "HEAD"})
"""Methods for which the scope `read` is enough."""
CANCEL = re.compile(r"/jobs/[^/]+/cancel")
"""The one change that the scope `admin` is for."""


SHOWN = re.compile(
    r"/jobs/(?P<job>[^/]+)(/(events|checkpoint|checkpoints|archive|report|logs|metrics\.csv|files/[^/]+))?"
)
"""What a link to a job shows of it, to look at."""


class Authenticate:
    """Leaves a `Principal` in the request's state. Without keys everybody on this machine is one tenant.

    A page in a browser on this machine could reach such a server too, under a name of its own (DNS rebinding) or by
    posting a form: so the host, and the origin if there is one, must be this machine.
    """

    def __init__(self, app: ASGIApp, keys: Keyring, stored: StoredKeys, links: SharedLinks) -> None:
        self.app, self.keys, self.stored, self.links = app, keys, stored, links
        self.attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._check(scope)
            except TcnnError as error:
                await errors.respond(scope["path"], error)(scope, receive, send)
                return
            if (who := scope["state"].get("principal")) is not None:
                request = scope["state"].get("request_id", "")
                with acting(Actor(tenant=who.tenant, key=who.key, request=request)):
                    await self.app(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        state = scope.setdefault("state", {})
        if path in OPEN or path.startswith("/static/"):  # the database is not asked: is the server alive?
            if not (self.keys or self.stored.known):
                _check_near(scope, headers)
            return
        if not (self.keys or await self.stored.there()):
            _check_near(scope, headers)
            principal, state["still"] = LOCAL, self._still_open
        else:
            given = headers.get("authorization", "")
            principal = await self._principal(scope, given)
            _check_scope(principal, scope["method"], path)
            state["still"] = partial(self._still_valid, given.partition(" ")[2].strip())
        state["principal"], state["key"] = principal, principal.key
        state["tenant"] = principal.counted_as

    async def _still_open(self) -> bool:
        """Whether everybody on this machine may go on: until the first key is made."""
        return not (self.keys or await self.stored.there())

    async def _still_valid(self, key: str) -> bool:
        """Whether a key that was valid still is: long answers ask again. Raises `StoreUnavailable`."""
        if key.startswith(SHARE_PREFIX):
            return await self.links.find(key) is not None
        return self.keys.find(key) is not None or await self.stored.find(key) is not None

    async def _principal(self, scope: Scope, given: str) -> Principal:
        scheme, _, key = given.partition(" ")
        found = await self._find(scope, key.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            what = "another key" if scheme.lower() == "bearer" else f"{scheme[:20]} credentials" if scheme else "none"
            raise Unauthorized(f"expected `Authorization: Bearer KEY` with a key of this server, found {what}")
        return found

    async def _find(self, scope: Scope, key: str) -> Principal | None:
        """Whose key it is. An address that guesses learns nothing more for a while; keys and links that were used
        before, maybe from behind the same proxy, go on. Raises as `_look` does.
        """
        if not key or self._is_known(key):
            return await self._look(key)
        address = (scope.get("client") or ("",))[0]
        async with self.attempts.turn(address):
            if self.attempts.too_many(address) and not self._is_known(key):
                raise TooManyKeys(f"{MOST_WRONG} wrong keys came from this address; wait {WINDOW:g} s")
            found = await self._look(key)
            if found is None:
                self.attempts.note(address)
            return found

    def _is_known(self, key: str) -> bool:
        """Whether it is no guess: it was used here before, valid or not."""
        memory = self._memory(key)
        return self.keys.was_used(key) or memory.was_used(key) or memory.has_ended(key)

    def _memory(self, key: str) -> Memory[ApiKey] | Memory[Share]:
        return self.links.memory if key.startswith(SHARE_PREFIX) else self.stored.memory

    async def _look(self, key: str) -> Principal | None:
        """Whose key it is, whoever asks.

        Raises `Unauthorized` for what was one and has ended. That is no guess, for its secret is known; and as it is
        remembered, the database is hardly asked for it, however often it comes.
        """
        link = key.startswith(SHARE_PREFIX)
        found = self.keys.find(key) or await (self._holder(key) if link else self._owner(key))
        if found is None and self._memory(key).has_ended(key):
            noun = "link" if link else "key"
            raise Unauthorized(
                f"expected a {noun} that is valid, found one that was revoked or has expired; ask for another"
            )
        return found

    async def _holder(self, secret: str) -> Principal | None:
        """Whoever has a link."""
        link = await self.links.find(secret)
        return None if link is None else Principal(link.owner, link.id, frozenset({accounts.Scope.READ}), link.job)

    async def _owner(self, secret: str) -> Principal | None:
        """Whose stored key it is."""
        stored = await self.stored.find(secret)
        return None if stored is None else Principal(stored.tenant, stored.id, stored.scopes)


class _Looks:
    """Keys of one address that are looked for just now."""

    def __init__(self) -> None:
        self.running = self.there = 0
        """Those that are looked for, and together with those that wait for their turn."""
        self.ended = asyncio.Event()
        """Set when one of them ends; the next one has an event of its own."""


class Attempts:
    """Counts wrong keys by address, for rate limiting. Of IPv6 a network of 64 bits counts as one address, for whoever
    has one may send each key from another.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._looks: dict[str, _Looks] = {}

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """A turn at looking for a key, which is waited for while the keys of this address that are being looked for
        would be too many wrong ones if all of them were. So keys sent at once are checked as if one came after another,
        and no right key is refused because of others."""
        address = network(address)
        looks = self._looks.setdefault(address, _Looks())
        looks.there += 1
        try:
            while 0 < self._left(address) <= looks.running:
                await looks.ended.wait()
            looks.running += 1
            try:
                yield
            finally:
                looks.running -= 1
                looks.ended.set()
                looks.ended = asyncio.Event()
        finally:
            looks.there -= 1
            if not looks.there:
                del self._looks[address]

    def note(self, address: str) -> None:
        """Count a wrong key."""
        address = network(address)
        since, count = self._wrong.pop(address, (time.monotonic(), 0))
        if time.monotonic() - since > WINDOW:
            since, count = time.monotonic(), 0
        self._wrong[address] = since, count + 1
        if len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)

    def too_many(self, address: str) -> bool:
        """Whether an address has sent too many wrong keys."""
        return not self._left(network(address))

    def _left(self, address: str) -> int:
        """Wrong keys that may still come."""
        since, count = self._wrong.get(address, (0.0, 0))
        return max(0, MOST_WRONG - count) if time.monotonic() - since <= WINDOW else MOST_WRONG


def _check_scope(principal: Principal, method: str, path: str) -> None:
    """Raise `MissingScope` for what the key is not for; whose things it is for is the routes' business."""
    if principal.job is not None:
        _check_shown(principal.job, method, path)
        return
    wanted = accounts.Scope.READ if method in LOOKS else accounts.Scope.SUBMIT
    admin = accounts.Scope.ADMIN in principal.scopes and (method in LOOKS or CANCEL.fullmatch(path))
    if wanted not in principal.scopes and not admin:
        raise missing(wanted, principal)


def _check_shown(job: str, method: str, path: str) -> None:
    """Raise `MissingScope` for whatever a link does not show."""
    shown = SHOWN.fullmatch(path)
    if method not in LOOKS or not (path == "/me" or (shown is not None and shown["job"] == job)):
        raise MissingScope("this link shows one job and changes nothing; for anything else use a key")


def _check_near(scope: Scope, headers: Headers) -> None:
    """Without keys: it is this machine that asks, for this machine."""
    _check_client(scope.get("client"))
    _check_host(headers)
    _check_direct(headers)


def _check_client(client: tuple[str, int] | None) -> None:
    """Wherever the server listens, and whatever proxy stands before it, only this machine is served without keys."""
    address = "" if client is None else client[0].removeprefix("::ffff:")
    if re.fullmatch(r"[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*", address) and not is_loopback(address):
        raise Forbidden("without API keys the server answers to this machine only; set TCNN_API_KEYS")


def _check_direct(headers: Headers) -> None:
    """A proxy on this machine asks for others, and may say that it is asked for localhost."""
    found = next((name for name in headers if name in PASSED_ON or name.startswith("x-forwarded-")), None)
    if found is not None:
        raise Forbidden(
            f"without API keys the server answers to this machine only, found a request through a proxy ({found}); "
            "set TCNN_API_KEYS"
        )


def _check_host(headers: Headers) -> None:
    for name, host in (("Host", f"//{headers.get('host', '')}"), ("Origin", headers.get("origin"))):
        if host is None:
            continue
        try:
            found = urlsplit(host).hostname or ""
        except ValueError:
            found = ""
        if not is_loopback(found):
            raise Forbidden(
                f"{name}: without API keys the server answers to localhost only, found {errors.quoted(found)}; "
                "use http://127.0.0.1, or set TCNN_API_KEYS"
            )
