"""Webhooks, to a real receiver on the loopback, signed by the Standard Webhooks scheme."""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time

import pytest
from houses import House, wait_for
from pydantic import ValidationError
from receiving import Receiver
from standardwebhooks import Webhook, WebhookVerificationError

from tcnn_jobs.housekeeping import webhooks
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.housekeeping.webhooks import Outbox, deliver_due
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.settings import QueueSettings

SECRET = "whsec of a test"


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


def test_a_tenants_own_secret_signs_its_calls_and_no_others(house: House, receiver: Receiver) -> None:
    """Also calls that are made again, and of jobs that are deleted meanwhile."""
    own = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    house.store.set_webhook_secret("local", own)
    mine, other = house.submit(webhook=receiver.url), house.submit(webhook=receiver.url, owner="other")
    for job in (mine, other):
        house.store.delete(house.store.cancel(job.id).id)
    assert deliver_due(house.store, SECRET) == 2
    for headers, body in receiver.calls:
        signer = Webhook(own) if json.loads(body)["job"]["id"] == mine.id else Webhook(SECRET.encode())
        signer.verify(body, headers)
    assert own not in repr(house.store.due_deliveries())
    house.store.set_webhook_secret("local", None)
    house.store.cancel(house.submit(webhook=receiver.url).id)
    deliver_due(house.store, SECRET)
    headers, body = receiver.calls[-1]
    Webhook(SECRET.encode()).verify(body, headers)


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
    for wrong in ("whsec_no base64", "whsec_"):
        with pytest.raises(ValidationError, match="base64 after whsec_"):
            QueueSettings(webhook_secret=wrong)
    with pytest.raises(ValidationError, match="expected a secret, found nothing"):
        QueueSettings(webhook_secret="")
    assert QueueSettings(webhook_secret="whsec_AAAA").webhook_secret == "whsec_AAAA"


def test_a_secret_that_signs_nothing_holds_up_no_other_tenant(house: House, receiver: Receiver) -> None:
    """As one that got into the database before it was refused."""
    house.store.set_webhook_secret("local", "whsec_")
    mine, other = house.submit(webhook=receiver.url), house.submit(webhook=receiver.url, owner="other")
    for job in (mine, other):
        house.store.cancel(job.id)
    assert deliver_due(house.store, SECRET) == 2
    told = [json.loads(body)["job"]["id"] for _, body in receiver.calls]
    assert told == [other.id] and house.store.due_deliveries() == []


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a line `TCNN_WEBHOOK_SECRET=` in a file of settings is read."""
    for name in QueueSettings.model_fields:
        monkeypatch.delenv(f"TCNN_{name.upper()}", raising=False)
    usual = QueueSettings()
    for name in QueueSettings.model_fields:
        monkeypatch.setenv(f"TCNN_{name.upper()}", "")
    assert QueueSettings() == usual


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
    while made := deliver_due(house.store, None):
        calls += made
    assert calls == webhooks.ATTEMPTS


def test_calls_are_made_beside_the_work(house: House, receiver: Receiver) -> None:
    dispatcher = Outbox(house.store, house.settings, Election(house.store, "w1", 60))
    dispatcher.start()
    job = house.submit(webhook=receiver.url)
    house.store.cancel(job.id)
    wait_for(lambda: receiver.calls)
    dispatcher.stop()
    dispatcher.join(timeout=60)
    assert not dispatcher.is_alive()
    assert len(receiver.calls) == 1


class Dripping:
    """Receivers of the worst kind: each answers with a byte of a header, or of a body without an end, now and then."""

    def __init__(self, answer: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        self._answer, self._over = answer, threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        open_ones: list[socket.socket] = []
        self.listener.settimeout(0.02)
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self.listener.accept()
                connection.sendall(self._answer)
                open_ones.append(connection)
            for connection in list(open_ones):
                try:
                    connection.sendall(b"x")
                except OSError:
                    open_ones.remove(connection)
        for connection in (*open_ones, self.listener):
            connection.close()

    def end(self) -> None:
        self._over.set()


def test_dripping_receivers_cost_their_own_calls_and_nobody_elses(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.5)
    dripping = Dripping(b"HTTP/1.1 200 OK\r\nx-header: ")
    for url in (*[dripping.url] * 20, receiver.url):
        house.store.cancel(house.submit(webhook=url).id)
    began = time.monotonic()
    assert deliver_due(house.store, SECRET) == 21
    assert time.monotonic() - began < 9, "one after the other would take 10"
    dripping.end()
    assert len(receiver.calls) == 1
    assert deliver_due(house.store, SECRET) == 0, "those that failed come back later"


def test_names_that_are_not_found_in_time_cost_their_own_calls_and_nobody_elses(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that says nothing for some names: more of them than asyncio has threads for all names."""
    over, look_up = threading.Event(), socket.getaddrinfo

    def silent(host: str, *more: object, **named: object) -> object:
        if "silent" in str(host):
            over.wait(60)
            raise socket.gaierror("temporary failure in name resolution")
        return look_up(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.5)
    urls = [f"http://silent-{number}.invalid/" for number in range(40)]
    for url in (*urls, receiver.url.replace("127.0.0.1", "localhost")):
        house.store.cancel(house.submit(webhook=url).id)
    delivering = threading.Thread(target=deliver_due, args=(house.store, SECRET), daemon=True)
    delivering.start()
    delivering.join(30)
    ended = not delivering.is_alive()
    over.set()
    for thread in threading.enumerate():
        if thread.name == "lookup":
            thread.join(30)
    assert ended, "the batch waited for the resolver"
    assert len(receiver.calls) == 1
    assert deliver_due(house.store, SECRET) == 0, "those that failed come back later"


def test_an_answer_without_an_end_is_not_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT", 60.0)
    endless = Dripping(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    house.store.cancel(house.submit(webhook=endless.url).id)
    began = time.monotonic()
    assert deliver_due(house.store, SECRET) == 1
    assert time.monotonic() - began < webhooks.TIMEOUT
    endless.end()
    with house.store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM deliveries").scalar() == 0, "200 is what counts"


def test_an_address_that_cannot_be_one_costs_no_other_call(house: House, receiver: Receiver) -> None:
    for url in ("http://\u2024.example/", "http://[::1", "nonsense", receiver.url):
        house.store.cancel(house.submit(webhook=url).id)
    assert deliver_due(house.store, SECRET) == 4
    assert len(receiver.calls) == 1
