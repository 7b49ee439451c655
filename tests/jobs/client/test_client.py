"""The client against a real server without a worker: the test plays the worker, through the store."""

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_and_worker import Worker
from cutting import relay, scripted
from data_pictures import draw_classes
from serving import Server

from tcnn.errors import RequestError
from tcnn_jobs.client import connection
from tcnn_jobs.client.client import Client
from tcnn_jobs.client.refusals import RefusedError, ServerFailure
from tcnn_jobs.model.jobs import Claim, NewEvent


def test_a_job_from_submission_to_deletion(client: Client, worker: Worker) -> None:
    job = client.submit("transform", {"model": "resnet18", "pretrained": False}, key="mine")
    assert client.submit("transform", {"model": "resnet18", "pretrained": False}, key="mine")["id"] == job["id"]
    assert client.jobs(status="queued", kind="transform")["data"][0]["id"] == job["id"]
    client.label(job["id"], tags=["first"])
    assert [one["id"] for one in client.jobs(tags="first")["data"]] == [job["id"]]  # one tag, not its letters
    assert client.cancel(job["id"])["status"] == "cancelled"
    assert client.resume(job["id"])["status"] == "queued"
    worker.finish(worker.take())
    assert client.job(job["id"])["status"] == "succeeded"
    client.delete(job["id"])
    with pytest.raises(RefusedError, match="job_") as caught:
        client.job(job["id"])
    assert (caught.value.status, caught.value.exit_code) == (404, 2)


def test_what_the_server_refuses(client: Client, server: Server) -> None:
    with pytest.raises(RefusedError, match="no timm model of this name") as caught:
        client.submit("transform", {"model": "resnet51"})
    assert caught.value.problem["errors"][0]["field"] == "model"
    with Client(server.url, "another") as stranger, pytest.raises(RefusedError, match="TCNN_API_KEY") as caught:
        stranger.jobs()
    assert (caught.value.status, caught.value.exit_code) == (401, 2)


def test_what_cannot_be_sent_is_told_by_its_field(client: Client) -> None:
    """It is the request that is wrong, and nothing of it reaches the server, which is there."""
    body: dict[str, Any] = {"model": "resnet18", "pretrained": False}
    for key in ("schlüssel", "a b", "a\nb", "\ud800", "x" * 256):
        with pytest.raises(RequestError, match="key: expected 1 to 255 visible ASCII characters"):
            client.submit("transform", body, key=key)
    for more, field in (
        ({"note": "a\udcffb"}, "note"), ({"finetune": {"config": {"lr": float("nan")}}}, "finetune.config.lr"),
        ({"tags": ["a", "\ud800"]}, "tags.1"), ({"\ud800": 1}, r"'\\ud800'"), ({"note": {1, 2}}, "not JSON"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=rf"^{field}: expected |{field}") as caught:
            client.submit("transform", body | more)
        assert not isinstance(caught.value, ServerFailure | RefusedError) and str(caught.value).isprintable()
    with pytest.raises(RequestError, match=r"^q: expected text, found a lone surrogate"):
        client.jobs(search="\udcff")
    with pytest.raises(RequestError, match="cannot be encoded"):
        client.submit("\ud800", body)
    assert client.jobs()["data"] == []


def test_ids_that_are_none_never_reach_the_server(client: Client) -> None:
    for identifier in ("", "..", "../healthz", "a/b", "a?b", "ü", "a" * 100):
        with pytest.raises(RequestError, match="not a job's id"):
            client.delete(identifier)


class TestWatch:
    def test_every_event_once_and_progress(self, client: Client, worker: Worker, running: Claim) -> None:
        events, progress = self._watched(client, worker, running)
        assert events == ["queued", "started", *(f"step{number}" for number in range(20)), "succeeded"]
        assert progress[-1]["percent"] == 100.0

    def test_a_connection_that_breaks(self, server: Server, worker: Worker, running: Claim) -> None:
        """Again and again, in the middle of a message: no event is lost, and none comes twice."""
        with relay(server.url, 1300, cuts=4) as wire, Client(wire.url, "key-of-alice") as client:
            events, _ = self._watched(client, worker, running)
            assert wire.cuts == 4
        assert events == ["queued", "started", *(f"step{number}" for number in range(20)), "succeeded"]

    def test_without_streams_it_polls(self) -> None:
        """As behind a proxy that lets no stream through, or when too many are open."""
        too_many = (429, {"Content-Type": "application/problem+json"}, b'{"detail": "too many"}')
        job = {"id": "job_1", "status": "running", "progress": {"phase": "training", "percent": 5.0}}
        html = (200, {"Content-Type": "text/html"}, b"<p>hello")
        states = [(200, {}, json.dumps({**job, "status": status}).encode()) for status in ("running", "succeeded")]
        with scripted(too_many, states[0], html, states[1]) as server, Client(server.url) as client:
            progress: list[Any] = []
            assert client.watch("job_1", progress.append, poll=0.01)["status"] == "succeeded"
        assert progress == [job["progress"]]
        assert [asked for asked, _, _ in server.asked] == ["GET /jobs/job_1/events", "GET /jobs/job_1"] * 2

    def test_a_job_that_is_not_there(self, client: Client) -> None:
        with pytest.raises(RefusedError) as caught:
            client.watch("job_000000000000000000000000")
        assert caught.value.status == 404

    @staticmethod
    def _watched(client: Client, worker: Worker, claim: Claim) -> tuple[list[str], list[Any]]:
        def work() -> None:
            for number in range(20):
                event = NewEvent(kind=f"step{number}", data={"text": "x" * 50})
                worker.tell(claim, event, phase="training", percent=5.0 * (number + 1))
                time.sleep(0.02)
            time.sleep(0.3)  # longer than the server's poll, so that the last progress is seen
            worker.finish(claim)

        thread = threading.Thread(target=work)
        thread.start()
        events: list[str] = []
        progress: list[Any] = []
        ended = client.watch(claim.job, progress.append, lambda kind, data: events.append(kind), poll=0.05)
        thread.join()
        assert ended["status"] == "succeeded"
        return events, progress


class TestUploads:
    def test_a_folder_is_sent_as_it_is(self, client: Client, server: Server, tmp_path: Path) -> None:
        folder = draw_classes(tmp_path / "pets", ["cat", "dog"])
        found = client.upload_dataset(folder, key="pets")
        assert (found["name"], found["classes"], found["images"]) == ("pets.tar", ["cat", "dog"], 6)
        unpacked = server.home / "datasets" / found["id"]
        for path in folder.rglob("*.jpg"):
            assert (unpacked / path.relative_to(folder)).read_bytes() == path.read_bytes()
        assert client.upload_dataset(folder, key="pets")["id"] == found["id"]

    def test_what_cannot_be_sent(self, client: Client, tmp_path: Path) -> None:
        for send in (client.upload_dataset, client.upload_checkpoint):
            with pytest.raises(RequestError, match="found nothing"):
                send(tmp_path / "missing.zip")
        (tmp_path / "x.safetensors").write_bytes(b"none")
        with pytest.raises(RefusedError, match="not a whole safetensors file"):
            client.upload_checkpoint(tmp_path / "x.safetensors")


class TestAway:
    def test_nobody_there(self) -> None:
        with Client("http://127.0.0.1:9", patience=0) as client, pytest.raises(ServerFailure) as caught:
            client.jobs()
        assert "http://127.0.0.1:9: cannot be reached" in str(caught.value)
        assert caught.value.exit_code == 4

    @pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://x:port", ""])
    def test_what_is_no_server(self, url: str) -> None:
        with pytest.raises(RequestError, match="URL"):
            Client(url)

    def test_another_server(self) -> None:
        html = scripted((200, {}, b"<html>"))
        with html as server, Client(server.url) as client, pytest.raises(ServerFailure, match="not answer as a tcnn"):
            client.jobs()

    @pytest.mark.parametrize("answer", [b'{"hello": 1}', b"[1, 2]", b"null"])
    def test_another_server_that_speaks_json(self, answer: bytes) -> None:
        job = "job_000000000000000000000000"
        with scripted((200, {"Content-Type": "application/json"}, answer)) as server, Client(server.url) as client:
            for ask in (client.jobs, *(partial(call, job) for call in (client.job, client.cancel, client.share))):
                with pytest.raises(ServerFailure, match="not answer as a tcnn server"):
                    ask()

    @pytest.mark.parametrize(
        ("status", "headers", "words"),
        [
            (301, {"Location": "https://example.org/jobs"}, "leads to https://example.org/jobs; give the URL of the"),
            (404, {"Content-Type": "application/json"}, "answers with 404, not as a tcnn server does"),
        ],
    )
    def test_what_stands_before_a_server_or_in_its_place(
        self, status: int, headers: dict[str, str], words: str
    ) -> None:
        other = scripted((status, headers, b'{"detail": "Not Found"}'))
        with other as server, Client(server.url) as client, pytest.raises(RefusedError, match=f"/jobs: {words}"):
            client.jobs()

    def test_a_deletion_whose_answer_was_lost(self, server: Server, client: Client) -> None:
        job = client.submit("transform", {"model": "resnet18", "pretrained": False})["id"]
        client.cancel(job)
        with relay(server.url, 0, cuts=1) as wire, Client(wire.url, "key-of-alice") as other:
            other.delete(job)
            assert wire.cuts == 1
            with pytest.raises(RefusedError, match="job_"):
                other.delete(job)

    def test_who_was_heard_in_a_stream_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As long as any server that has answered before."""
        monkeypatch.setattr(connection, "FIRST_PATIENCE", 0.0)
        said = (200, {"Content-Type": "text/event-stream"}, b'event: started\nid: 1\ndata: {"data": {}}\n\n')
        ended = (200, {}, json.dumps({"status": "succeeded", "progress": None}).encode())
        with scripted(said, ended) as server, relay(server.url, 0, cuts=0) as wire, Client(wire.url) as client:
            assert client.watch("job_1", event=lambda *_: setattr(wire, "left", 1))["status"] == "succeeded"
            assert wire.cuts == 1

    def test_a_link_whose_secret_was_lost_is_made_anew(self, server: Server) -> None:
        """The server does not store it: the address ended in None, beside a link that nobody could use."""
        with relay(server.url, 0, cuts=0) as wire, Client(wire.url, "key-of-alice", patience=20) as client:
            job = client.submit("transform", {"model": "resnet18", "pretrained": False})["id"]
            for key in (None, "mine"):
                wire.left = 1
                made = client.share(job, key=key)
                assert (made["page"] is None) == (key == "mine")
                (listed,) = client.shares(job)["data"]
                assert listed["id"] == made["id"]
                client.unshare(job, made["id"])
            assert wire.cuts == 2

    def test_links_whose_secrets_are_always_lost_come_to_an_end(self) -> None:
        """The client made and revoked links for ever."""
        made = (201, {}, b'{"id": "share_1", "page": null, "secret": null}')
        with scripted(made) as server, Client(server.url) as client, pytest.raises(ServerFailure, match="8 times"):
            client.share("job_1")
        assert [request.split()[0] for request, _, _ in server.asked] == ["POST", "DELETE"] * 8

    def test_a_busy_server_is_asked_again_with_the_same_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the pause that it asks for."""
        busy = (503, {"Retry-After": "1"}, b'{"detail": "the database is locked"}')
        with scripted(busy, (202, {}, b'{"id": "job_1"}')) as server, Client(server.url) as client:
            pauses: list[float] = []
            monkeypatch.setattr(time, "sleep", pauses.append)
            assert client.submit("transform", {"model": "resnet18"}) == {"id": "job_1"}
            assert pauses == [1.0]
        assert len({headers["idempotency-key"] for _, headers, _ in server.asked}) == 1
        assert len({body for _, _, body in server.asked}) == 1
        assert len(server.asked) == 2

    def test_patience_ends(self) -> None:
        busy = (503, {"Retry-After": "100"}, b'{"detail": "the database is locked"}')
        locked = pytest.raises(ServerFailure, match="the database is locked")
        with scripted(busy) as server, Client(server.url, patience=5) as client, locked:
            client.jobs()
        assert len(server.asked) == 1
