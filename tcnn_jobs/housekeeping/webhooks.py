"""Webhook calls about jobs that have ended: made by the housekeeper when they are due, in a thread nothing waits for.

Calls are made side by side, each with a deadline for all of it, and tenants take turns: a receiver which answers a byte
at a time, or never, costs its own call and delays calls of its own tenant. Those of others it delays by that deadline
at most, when receivers of several tenants hang. Leases, reaping and sweeps do not pass here.
"""

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache

import httpx
import structlog
from standardwebhooks import Webhook

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.housekeeping import coordination, lookups
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.model.jobs import Delivery
from tcnn_jobs.retry import backoff
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.outbox")

AT_ONCE, EACH = 50, 10
"""Calls that are made side by side, and those of one tenant among them."""
ATTEMPTS = 10
DELAY = 10.0
LOOK = 0.25
"""Seconds from one look for calls that are due to the next, while others are under way."""
PREFIX = "whsec_"
TIMEOUT = 10.0
"""Seconds for a whole call: to find the receiver, to connect, to send, and to hear the head of its answer."""


class Outbox(threading.Thread):
    """Ends with the process, or when told to; a call that is under way then is made again by another worker."""

    def __init__(self, store: Store, settings: QueueSettings, election: Election) -> None:
        super().__init__(name="outbox", daemon=True)
        self._store, self._settings, self._election = store, settings, election
        self._told = threading.Event()

    def run(self) -> None:
        """Dispatch until `stop`."""
        while not self._told.wait(coordination.spread(max(1.0, self._settings.poll))):
            try:
                if self._goes_on():
                    deliver_due(self._store, self._settings.webhook_secret, self._goes_on)
            except StoreUnavailable:
                continue  # the worker says so
            except Exception:
                log.exception("webhooks failed; they will be tried again")

    def _goes_on(self) -> bool:
        return not self._told.is_set() and self._election.won()

    def stop(self) -> None:
        """End after the current calls."""
        self._told.set()


def deliver_due(store: Store, secret: str | None, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Make the calls that are due, and those that become due while others are under way; returns how many.

    A call that fails comes back later. Once it does not go on, it ends with the calls that are under way.
    """
    due = store.due_deliveries(AT_ONCE, each=EACH)
    return lookups.run(_deliver(store, due, secret, goes_on)) if due else 0


async def _deliver(store: Store, due: list[Delivery], secret: str | None, goes_on: Callable[[], bool]) -> int:
    loop = asyncio.get_running_loop()
    calls: dict[asyncio.Task[None], str] = {}
    """Calls that are under way, and whose."""
    with ThreadPoolExecutor(1, "outbox") as recorder:  # the store may take its time, and no deadline waits for it
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits, verify=_trusted()) as client:

            async def one(delivery: Delivery) -> None:
                problem = await call(client, delivery, delivery.secret or secret)
                await loop.run_in_executor(recorder, _record, store, delivery, problem)

            def more() -> list[Delivery]:
                room = AT_ONCE - len(calls)
                return store.due_deliveries(room, each=EACH, under_way=Counter(calls.values())) if goes_on() else []

            made = 0
            try:
                while due or calls:
                    made += len(due)
                    calls |= {asyncio.create_task(one(delivery)): delivery.tenant for delivery in due}
                    room = len(calls) < AT_ONCE
                    ended, _ = await asyncio.wait(calls, timeout=0 if due and room else LOOK)
                    calls = {task: tenant for task, tenant in calls.items() if task not in ended}
                    due = await loop.run_in_executor(recorder, more) if len(calls) < AT_ONCE else []
            finally:
                await asyncio.gather(*calls)  # also when the database is away
            return made


@cache  # reading the certificates takes longer than most calls
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _record(store: Store, delivery: Delivery, problem: str | None) -> None:
    again = delivery.attempt < ATTEMPTS
    try:
        if problem is None:
            store.delivered(delivery.id)
            log.info("webhook delivered", job=delivery.job)
        else:
            store.delivery_failed(delivery.id, backoff(delivery.attempt, DELAY) if again else None)
            log.warning("webhook failed", job=delivery.job, problem=problem, attempt=delivery.attempt, again=again)
    except StoreUnavailable:  # it will be due again, and the receiver can tell by its id
        log.warning("webhook outcome not recorded", job=delivery.job)


def headers(delivery: Delivery, body: bytes, secret: str | None, now: int) -> dict[str, str]:
    """`webhook-id`, `webhook-timestamp`, and, with a secret, `webhook-signature` over both and the body."""
    values = {"content-type": "application/json", "webhook-id": delivery.id, "webhook-timestamp": str(now)}
    if secret is not None:
        when = datetime.fromtimestamp(now, UTC)
        values["webhook-signature"] = _signer(secret).sign(delivery.id, when, body.decode())
    return values


def _signer(secret: str) -> Webhook:
    """`whsec_…` is base64 of the key, as the scheme has it; any other text is the key itself."""
    return Webhook(secret if secret.startswith(PREFIX) else secret.encode())


async def call(client: httpx.AsyncClient, delivery: Delivery, secret: str | None) -> str | None:
    """Make a call; returns what went wrong, for whatever it was, it must not end the calls beside it.

    `TIMEOUT` is for all of it, and of the answer only its head is read.
    """
    try:
        body = json.dumps(delivery.body, separators=(",", ":")).encode()
        signed = headers(delivery, body, secret, int(time.time()))
        async with (
            asyncio.timeout(TIMEOUT),
            client.stream("POST", delivery.url, content=body, headers=signed, follow_redirects=False) as answer,
        ):
            return None if answer.is_success else f"status {answer.status_code}"
    except TimeoutError:
        return f"no answer within {TIMEOUT:g} s"
    except Exception as error:  # addresses and secrets can be wrong in more ways than the client knows
        return type(error).__name__
