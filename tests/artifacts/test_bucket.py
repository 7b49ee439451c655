"""Objects: whole or not there, read back, tried again; against a real server that refuses and fails."""

import hashlib
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import fsspec
import pytest
from s3 import BUCKET, Answer, Gate, fails, full, gated, read_only
from structlog.testing import capture_logs

from tcnn.errors import EnvironmentFailure, RequestError, Stopped, StorageError
from tcnn_jobs.artifacts import bucket as bucket_of
from tcnn_jobs.artifacts.bucket import _SENDING, PROBE, TRIES, Bucket, BucketError, ObjectGone
from tcnn_jobs.artifacts.cache import Cache
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.housekeeping import objects


def file(tmp_path: Path, content: bytes = b"0123456789" * 100) -> tuple[Path, str]:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


def test_what_is_sent_comes_back(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    bucket.put(path, "a/b", digest)
    assert gate.objects() == {"team/a/b": path.read_bytes()}
    bucket.get("a/b", tmp_path / "back", digest)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert {key: item.size for key, item in bucket.keys("a").items()} == {"a/b": 1000}
    bucket.remove("a/b", "a/never")
    assert bucket.keys("a") == {}
    for ask in (
        lambda: bucket.get("a/b", tmp_path / "gone", digest),
        lambda: bucket.text("a/b"),
        lambda: bucket.look("a/b"),
        lambda: bucket.text("one/a/b"),
    ):
        with pytest.raises(ObjectGone, match=r"^b: no longer in the store$"):
            ask()


def test_little_more_is_read_than_was_asked_for(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    """One block ahead, however large the object: a server that gives out a few bytes of a model fetches few."""
    path, digest = file(tmp_path)
    bucket.put(path, "a", digest)
    with bucket.open("a", block=100) as handle:
        assert handle.read(3) == b"012"
        assert len(handle.cache.cache) == 103  # type: ignore[attr-defined]


def test_large_files_go_in_parts_and_nothing_is_left_of_a_stopped_one(
    bucket: Bucket, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_SENDING, "s3", {"chunksize": 5 << 20})  # S3 takes no smaller ones
    path, digest = file(tmp_path, bytes(11 << 20))
    bucket.put(path, "large", digest)
    parts = [asked for method, asked in gate.seen if method == "PUT"]
    assert len(parts) == 3 and all("partNumber" in asked for asked in parts)
    stop = threading.Event()
    gate.refuse = lambda method, asked: stop.set() if "partNumber=2" in asked else None
    with pytest.raises(Stopped):
        bucket.put(path, "stopped", digest, stop)
    assert gate.names() == {"team/large"} and gate.unfinished() == []


def test_what_is_on_its_way_when_a_test_ends_reaches_no_other(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """As parts of a stopped upload are, on connections that are kept."""
    with gated(gate.behind, gate.process) as before:
        monkeypatch.setenv("AWS_ENDPOINT_URL", before.url)
        bucket = Bucket("s3://results/team", pause=0.01)
        bucket.put_text("early", "text")
    with pytest.raises(BucketError, match="cannot write late"):
        bucket.put_text("late", "text")
    assert gate.names() == {"team/early"} and gate.seen == []


def test_what_fails_twice_is_tried_again(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    gate.refuse = fails(times=2)
    bucket.put(path, "a", digest)
    assert gate.objects() == {"team/a": path.read_bytes()}
    assert [method for method, _ in gate.seen].count("PUT") == 3


def test_what_comes_back_otherwise_is_no_success(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    wrong = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(BucketError, match=rf"cannot send a \(expected SHA-256 {wrong[:12]}… back, got {digest[:12]}…"):
        bucket.put(path, "a", wrong)
    bucket.put(path, "b", digest)
    with pytest.raises(BucketError, match="expected SHA-256"):
        bucket.get("b", tmp_path / "back", wrong)


def test_without_rights_it_is_said_at_once(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    gate.refuse = read_only
    with pytest.raises(
        BucketError, match=r"^the store of results: cannot send a \(.*AccessDenied says the store"
    ) as said:
        bucket.put(path, "a", digest)
    assert not said.value.again and "\n" not in str(said.value)
    assert [method for method, _ in gate.seen] == ["PUT"]


def test_who_may_not_list_is_told_what(bucket: Bucket, gate: Gate) -> None:
    gate.refuse = lambda method, path: (403, "AccessDenied") if method == "GET" else None
    with pytest.raises(BucketError, match=r"^the store of results: cannot list inner \(.*AccessDenied"):
        bucket.keys("outer/inner")


def test_without_space_or_a_server_it_is_tried_and_then_said(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    gate.refuse = full
    with pytest.raises(BucketError, match="XMinioStorageFull says the store") as said:
        bucket.put(path, "a", digest)
    assert said.value.again and gate.names() == set()


def test_no_such_bucket(gate: Gate, tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    with pytest.raises(BucketError, match="bucket does not exist") as said:
        Bucket("s3://another", pause=0.01).put(path, "a", digest)
    assert not said.value.again


@pytest.mark.parametrize("url", ["nonsense://a/b", "s3//a"])
def test_urls_that_nothing_reads(url: str) -> None:
    with pytest.raises(RequestError, match=f"^{url}: expected s3://bucket/prefix"):
        Bucket(url)


def test_a_folder_is_a_store_too(tmp_path: Path) -> None:
    path, digest = file(tmp_path)
    folder = Bucket(f"file://{tmp_path}/store", pause=0.0)
    folder.put(path, "a/b", digest)
    folder.put_text("a/c", "text")
    assert folder.text("a/c") == "text" and folder.look("a/b").modified > 0
    assert sorted(folder.keys("a")) == ["a/b", "a/c"] and folder.keys("none") == {}
    with folder.open("a/b") as handle:
        handle.seek(990)
        assert handle.read() == b"0123456789"
    assert not list(tmp_path.rglob(".*")), "nothing half-written"


def test_a_full_disk_here_is_no_fault_of_the_store(
    tmp_path: Path, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    path, digest = file(tmp_path)
    folder = Bucket(f"file://{tmp_path}/store", pause=0.0)
    folder.put(path, "a/b", digest)
    with file_size_limit(100), pytest.raises(StorageError, match=r"^b: no space left while writing") as full:
        folder.get("a/b", tmp_path / "back", digest)
    assert not isinstance(full.value, BucketError)
    folder.get("a/b", tmp_path / "back", digest)


class Patient(threading.Event):
    """Waits at once, and notes for how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout)
        return False


def test_every_pause_is_twice_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From about a second on."""
    bucket, stop = Bucket(f"file://{tmp_path}"), Patient()
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    monkeypatch.setattr(bucket._fs, "cat_file", lambda *_: {}["away"])
    with pytest.raises(BucketError, match=r"^the store of results: cannot read a "):
        bucket.text("a", stop)
    assert stop.asked == [1.0 * 2**number for number in range(TRIES - 1)]


@pytest.mark.parametrize("refuse", [read_only, full, lambda method, path: (404, "NoSuchBucket")])
def test_a_store_that_takes_nothing_is_not_ready(
    bucket: Bucket, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Answer
) -> None:
    """It is written to once a minute, however many ask; at once after it refused something, until it takes it again."""
    gate.refuse = refuse
    for _ in range(2):
        with pytest.raises(BucketError):
            bucket.check()
    gate.refuse = lambda method, path: None
    for _ in range(2):
        bucket.check()
    assert [method for method, _ in gate.seen].count("PUT") == 3
    gate.refuse = refuse
    if refuse in (read_only, full):
        bucket.check()  # as it was found just now
    path, digest = file(tmp_path)
    with pytest.raises(BucketError):
        bucket.put(path, "a/b", digest)
    with pytest.raises(BucketError):
        bucket.check()
    monkeypatch.setattr(bucket_of, "WRITTEN", 0.0)
    gate.refuse = lambda method, path: None
    bucket.check()
    gate.refuse = refuse
    with pytest.raises(BucketError):
        bucket.check()


def test_a_store_that_gives_nothing_back_is_not_ready(bucket: Bucket, gate: Gate) -> None:
    """As to a key that may write and not decrypt; what was written is asked for once, and no more."""
    bucket.check()
    assert [method for method, path in gate.seen if path.endswith(PROBE)] == ["PUT", "GET"]
    other = Bucket(bucket.url)
    gate.refuse = lambda method, path: (403, "AccessDenied") if method == "GET" and path.endswith(PROBE) else None
    for _ in range(2):
        with pytest.raises(BucketError, match=f"cannot read {PROBE}"):
            other.check()


def test_a_store_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    monkeypatch.setattr(bucket._fs, "ls", lambda *_, **__: {}["away"])
    with pytest.raises(BucketError, match=r"^the store of results: cannot list objects "):
        bucket.check()


@pytest.mark.parametrize(("scheme", "hint"), [("s3", r"pip install 'tcnn\[s3\]'"), ("gs", "No module named gcsfs")])
def test_a_library_that_is_missing(scheme: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("No module named gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    expected = f"^{scheme}://a: {scheme}:// needs a library that is missing: {hint}$"
    with pytest.raises(EnvironmentFailure, match=expected):
        Bucket(f"{scheme}://a")


def test_parts_that_were_never_joined_are_dropped(bucket: Bucket, gate: Gate, tmp_path: Path) -> None:
    """As of a host that was switched off; the store keeps them, and has them paid for, for ever."""
    for key in ("team/one", "team/two", "teams/other"):
        bucket._fs.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    assert bucket.drop_unfinished(10**10) == 0, "one may be under way"
    assert bucket.drop_unfinished(-60) == 2
    assert gate.unfinished() == ["teams/other"]
    gate.refuse = lambda method, path: (403, "AccessDenied") if "uploads" in path else None
    with pytest.raises(BucketError, match="cannot list unfinished uploads"):
        bucket.drop_unfinished(0)
    artifacts = SharedArtifacts(Home(tmp_path).create(), bucket, Cache(tmp_path / "cache", limit=1))
    with capture_logs() as said:
        objects.drop_unfinished(artifacts)  # ends no other chore
    assert [line["event"] for line in said] == ["unfinished uploads stay; let the bucket drop them by a rule"]
