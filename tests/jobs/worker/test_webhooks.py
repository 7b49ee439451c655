"""Webhooks, to a real receiver on the loopback, signed by the Standard Webhooks scheme."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from houses import House
from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.model import Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.worker import webhooks
from tcnn_jobs.worker.chores import Chores
from tcnn_jobs.worker.webhooks import deliver_due

SECRET = "whsec of a test"


class Receiver:
    """Answers with `statuses`, one after the other, and keeps what it got."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.statuses = [204]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.calls.append(({key.lower(): value for key, value in self.headers.items()}, body))
                status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
                self.send_response(status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?x=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_a_finished_job_is_told_once_and_signed(house: House, receiver: Receiver) -> None:
    job = house.submit(webhook=receiver.url)
    house.worker("succeed()").run(until_empty=True)
    assert deliver_due(house.store, SECRET) == 1
    assert deliver_due(house.store, SECRET) == 0
    ((headers, body),) = receiver.calls
    told = json.loads(body)
    assert told["type"] == "job.succeeded"
    assert told["job"]["id"] == job.id
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.parametrize("secret", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "any words"])
def test_the_official_library_accepts_the_signature(house: House, receiver: Receiver, secret: str) -> None:
    """`whsec_` and base64, as every implementation of the scheme decodes it; any other text is the key itself."""
    house.store.cancel(house.submit(webhook=receiver.url).id)
    deliver_due(house.store, secret)
    ((headers, body),) = receiver.calls
    given = secret if secret.startswith("whsec_") else secret.encode()
    assert Webhook(given).verify(body, headers)["type"] == "job.cancelled"
    with pytest.raises(WebhookVerificationError):
        Webhook(b"another").verify(body, headers)


def test_a_secret_that_cannot_be_decoded_is_told_at_the_start() -> None:
    """And not by every receiver."""
    with pytest.raises(ValidationError, match="base64 after whsec_"):
        QueueSettings(webhook_secret="whsec_no base64")
    assert QueueSettings(webhook_secret="whsec_AAAA").webhook_secret == "whsec_AAAA"


@pytest.mark.parametrize(
    ("script", "status"),
    [("outcome(error={'code': 'request', 'message': 'no'}); sys.exit(2)", Status.FAILED), (None, Status.CANCELLED)],
)
def test_every_end_is_told(house: House, receiver: Receiver, script: str | None, status: Status) -> None:
    job = house.submit(webhook=receiver.url)
    if script is None:
        house.store.cancel(job.id)
    else:
        house.worker(script).run(until_empty=True)
    deliver_due(house.store, None)
    ((headers, body),) = receiver.calls
    assert json.loads(body)["job"]["status"] == status
    assert "webhook-signature" not in headers


def test_a_receiver_that_is_away_is_called_again_with_the_same_id(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DELAY", 0.0)
    receiver.statuses = [500, 302, 200]
    job = house.submit(webhook=receiver.url)
    house.store.cancel(job.id)
    while deliver_due(house.store, SECRET):
        pass
    assert len(receiver.calls) == 3, "a redirect is not followed, it is a failure"
    assert len({headers["webhook-id"] for headers, _ in receiver.calls}) == 1


def test_a_receiver_that_never_answers_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "DELAY", 0.0)
    job = house.submit(webhook="http://127.0.0.1:9/nobody")
    house.store.cancel(job.id)
    calls = 0
    while deliver_due(house.store, None):
        calls += 1
    assert calls == webhooks.ATTEMPTS


def test_calls_are_made_beside_the_work(house: House, receiver: Receiver) -> None:
    chores = Chores(house.store, house.home, house.settings, LocalArtifacts(house.home))
    chores.start()
    job = house.submit(webhook=receiver.url)
    house.store.cancel(job.id)
    deadline = time.monotonic() + 20
    while not receiver.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    chores.stop()
    chores.join(timeout=10)
    assert not chores.is_alive()
    assert len(receiver.calls) == 1
