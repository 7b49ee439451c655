"""Calls to whoever wants to know that a job has ended, signed by the Standard Webhooks scheme."""

import json
import time
from datetime import UTC, datetime

import httpx
import structlog
from standardwebhooks import Webhook

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model import Delivery
from tcnn_jobs.retry import backoff
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.webhooks")

PREFIX = "whsec_"
ATTEMPTS = 10
DELAY = 10.0
TIMEOUT = 10.0


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


def deliver_due(store: Store, secret: str | None) -> int:
    """Make every call that is due; a call that fails comes back later. Returns how many there were."""
    due = store.due_deliveries()
    for delivery in due:
        try:
            _tell(store, delivery, secret)
        except StoreUnavailable:  # it will be due again, and the receiver can tell by its id
            log.warning("webhook outcome not recorded", job=delivery.job)
    return len(due)


def _tell(store: Store, delivery: Delivery, secret: str | None) -> None:
    body = json.dumps(delivery.body, separators=(",", ":")).encode()
    try:
        answer = httpx.post(
            delivery.url, content=body, headers=headers(delivery, body, secret, int(time.time())), timeout=TIMEOUT,
            follow_redirects=False,
        )  # fmt: skip
        problem = None if answer.is_success else f"status {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = type(error).__name__
    if problem is None:
        store.delivered(delivery.id)
        log.info("webhook delivered", job=delivery.job)
        return
    again = delivery.attempt < ATTEMPTS
    store.delivery_failed(delivery.id, backoff(delivery.attempt, DELAY) if again else None)
    log.warning("webhook failed", job=delivery.job, problem=problem, attempt=delivery.attempt, again=again)
