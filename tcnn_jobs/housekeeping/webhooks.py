"""Send one webhook call about a job that has ended, signed by the Standard Webhooks scheme."""

import asyncio
import json
import time
from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

from tcnn_jobs.model.jobs import Delivery

PREFIX = "whsec_"
TIMEOUT = 10.0
"""Seconds for a whole call: to find the receiver, to connect, to send, and to hear the head of its answer."""


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
    """Make a call; returns what went wrong. `TIMEOUT` is for all of it, and of the answer only its head is read."""
    body = json.dumps(delivery.body, separators=(",", ":")).encode()
    signed = headers(delivery, body, secret, int(time.time()))
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            client.stream("POST", delivery.url, content=body, headers=signed, follow_redirects=False) as answer,
        ):
            return None if answer.is_success else f"status {answer.status_code}"
    except TimeoutError:
        return f"no answer within {TIMEOUT:g} s"
    except Exception as error:  # addresses can be wrong in more ways than the client knows
        return type(error).__name__
