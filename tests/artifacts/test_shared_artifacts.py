"""Artifacts in a store that hosts share, here a folder: two hosts, each with a home and a cache of its own."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tcnn.errors import RequestError, Stopped
from tcnn_jobs.artifacts import layout, shared
from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.artifacts.bucket import NEVER, Bucket, BucketError, ObjectGone
from tcnn_jobs.artifacts.cache import Cache
from tcnn_jobs.artifacts.layout import TAR_DIGEST, Home, parse
from tcnn_jobs.artifacts.mirror import Mirror
from tcnn_jobs.artifacts.shared import SharedArtifacts, pack, unpack
from tcnn_jobs.model.jobs import Artifact, Job, Kind, Result, Status, Upload
from tcnn_jobs.settings import QueueSettings

JOB, OTHER = "job_0123456789", "job_9876543210"


class Host:
    """A home, and what it shares."""

    def __init__(self, root: Path, store: Path) -> None:
        self.home = Home(root, shared=True).create()
        self.bucket = Bucket(f"file://{store}", pause=0.0)
        self.artifacts = SharedArtifacts(self.home, self.bucket, Cache(self.home.cache, limit=1 << 30))

    def publish(self, job: str, claim: int, **contents: bytes) -> dict[str, Artifact]:
        """The files `NAME.json` of an attempt, sent as its worker sends them."""
        attempt = self.home.attempt(job, claim)
        attempt.mkdir(parents=True)
        files = {}
        for name, content in contents.items():
            (attempt / f"{name}.json").write_bytes(content)
            files[name] = Artifact(
                name=f"{name}.json", path=f"{job}/{claim}/{name}.json", size=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
            )  # fmt: skip
        Mirror(self.bucket, attempt, job, claim).publish(Result(files=tuple(files.values())), NEVER)
        return files


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Host, Host]:
    first, second = (Host(tmp_path / name, tmp_path / "store") for name in ("first", "second"))
    return first, second


def data_set(folder: Path) -> Path:
    """A folder of two classes."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(name.encode())
    return folder


def row(kind: str, identifier: str, content: bytes = b"weights") -> Upload:
    digest = hashlib.sha256(content).hexdigest()
    return Upload(
        id=identifier, owner="ann", kind=kind, name="x", path=identifier, size=7, sha256=digest, details={"classes": 2}
    )


def test_an_uploaded_checkpoint_is_in_the_store_and_in_the_cache(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    found = first.home.incoming / "found"
    found.write_bytes(b"weights")
    upload = first.artifacts.add(row("checkpoint", "ckpt_0123456789"), found)
    assert upload == row("checkpoint", "ckpt_0123456789") and not found.exists()
    assert (first.home.cache / "ckpt_0123456789.safetensors").read_bytes() == b"weights"
    reference = second.artifacts.upload(upload)
    assert reference == Reference(
        path=str(second.home.cache / "ckpt_0123456789.safetensors"),
        key="checkpoints/ckpt_0123456789.safetensors",
        sha256=upload.sha256,
        size=7,
        before=str(second.home.checkpoints / "ckpt_0123456789.safetensors"),
    )
    assert second.artifacts.path(reference).read_bytes() == b"weights"
    first.artifacts.remove_upload(upload)
    assert first.bucket.keys("checkpoints") == {} and not any(first.home.cache.iterdir())
    with pytest.raises(ObjectGone, match="no longer in the store"):
        first.artifacts.path(first.artifacts.upload(upload))


def test_an_uploaded_data_set_is_packed_and_unpacked(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    upload = first.artifacts.add(row("dataset", "ds_0123456789"), data_set(first.home.incoming / "found"))
    assert upload.details["classes"] == 2, "what was told of it stays"
    (key,) = first.bucket.keys("datasets")
    digest = hashlib.sha256(first.bucket.open(key).read()).hexdigest()
    assert (key, upload.details[TAR_DIGEST]) == ("datasets/ds_0123456789.tar", digest)
    reference = second.artifacts.upload(upload)
    assert (reference.folder, reference.sha256) == (True, digest)
    assert reference.before == str(second.home.datasets / "ds_0123456789")
    for host in (first, second):
        folder = host.artifacts.path(host.artifacts.upload(upload))
        assert folder == host.home.cache / "ds_0123456789"
        assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.png")} == {
            "cat/1.png": "cat", "dog/1.png": "dog",
        }  # fmt: skip
    assert [path.name for path in second.home.cache.iterdir()] == ["ds_0123456789"], "the archive was in between only"


def test_what_is_fetched_has_room_made_for_it(hosts: tuple[Host, Host]) -> None:
    """As much as its row says, and twice that for a data set, of which there are archive and folder at first."""
    first, second = hosts
    found = first.home.incoming / "found"
    found.write_bytes(b"weights")
    checkpoint = first.artifacts.add(row("checkpoint", "ckpt_0123456789"), found)
    dataset = first.artifacts.add(row("dataset", "ds_0123456789"), data_set(first.home.incoming / "set"))
    for upload, room in ((checkpoint, 7), (dataset, 14)):
        for limit, stays in ((100 + room, True), (99 + room, False)):
            old = second.home.cache / "old"
            old.write_bytes(bytes(100))
            os.utime(old, (1, 1))
            cache = Cache(second.home.cache, limit)
            second.artifacts.cache = cache
            second.artifacts.path(second.artifacts.upload(upload))
            assert old.exists() == stays
            cache.drop(Path(second.artifacts.upload(upload).path).name)


@pytest.mark.parametrize("kind", ["dataset", "checkpoint"])
def test_what_was_uploaded_before_there_was_a_store(hosts: tuple[Host, Host], kind: str) -> None:
    first, _ = hosts
    if kind == "dataset":
        upload = row("dataset", "ds_0123456789")
        before = data_set(first.home.dataset(upload.id)) / "cat/1.png"
    else:
        upload = row("checkpoint", "ckpt_0123456789")
        before = first.home.checkpoint(upload.id)
        before.write_bytes(b"weights")
    found = first.artifacts.path(first.artifacts.upload(upload))
    assert (found / "cat/1.png" if kind == "dataset" else found).read_bytes() == before.read_bytes()
    assert before.exists()


def test_a_published_file_on_another_host(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    file = first.publish(JOB, 1, evaluation=b"{}")["evaluation"]
    reference = second.artifacts.file(file)
    assert (Path(reference.path).name, reference.size) == (f"{file.sha256}.json", 2)
    assert second.artifacts.path(reference).read_bytes() == b"{}"
    opened = second.artifacts.open(file)
    with opened.handle as handle:
        assert (handle.read(), opened.size) == (b"{}", 2)
    assert opened.modified > 0
    second.artifacts.remove_job(JOB)
    assert second.bucket.keys("jobs") == {}
    with first.artifacts.open(file).handle as handle:  # the first has its own files still
        assert handle.read() == b"{}"
    with pytest.raises(FileNotFoundError):
        second.artifacts.open(file)
    first.artifacts.remove_job(JOB)
    assert not first.home.job(JOB).exists()


def test_attempts_are_those_here_and_those_in_the_store(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    for claim in (10, 2):
        first.publish(JOB, claim, evaluation=b"{}")
    second.home.attempt(JOB, 3).mkdir(parents=True)
    second.bucket.put_text(f"jobs/{JOB}/4/{'0' * 64}/stray", "no manifest names it")
    assert second.artifacts.published(JOB) == [2, 10]
    assert second.artifacts.attempts(JOB, 10) == [2, 3, 10]
    assert second.artifacts.attempts(JOB, 2) == [2], "its row, which is older, knows of no other"
    assert second.artifacts.attempts(OTHER, 10) == []


def test_a_file_of_an_attempt_is_the_one_here_if_there_is_one(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    first.publish(JOB, 1, evaluation=b"sent")
    path = first.home.attempt(JOB, 1) / "evaluation.json"
    path.write_bytes(b"newer")
    assert first.artifacts.attempt_file(JOB, 1, "evaluation.json") == path
    found = second.artifacts.attempt_file(JOB, 1, "evaluation.json")
    assert found is not None and found.read_bytes() == b"sent"
    assert second.artifacts.attempt_file(JOB, 1, "conversion.json") is None
    assert second.artifacts.attempt_file(JOB, 2, "evaluation.json") is None
    second.artifacts.cache.drop(found.name)
    (key,) = (key for key in second.bucket.keys("jobs") if key.endswith("evaluation.json"))
    second.bucket.remove(key)
    assert second.artifacts.attempt_file(JOB, 1, "evaluation.json") is None, "replaced by a newer one just now"


def test_an_attempt_as_a_folder(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    first.publish(JOB, 1, conversion=b"{}", evaluation=b"[]")
    job = Job(
        id=JOB, number=1, owner="ann", kind=Kind.TRANSFORM, status=Status.SUCCEEDED, request={}, created_at=0.0,
        not_before=0.0,
    )  # fmt: skip
    folder = second.artifacts.attempt(job, 1)
    assert folder is not None and folder.parent == second.home.cache
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "conversion.json": b"{}", "evaluation.json": b"[]",
    }  # fmt: skip
    assert second.artifacts.attempt(job, 2) is None
    second.home.attempt(JOB, 2).mkdir(parents=True)
    assert second.artifacts.attempt(job, 2) == second.home.attempt(JOB, 2), "one that was never published"
    second.bucket.put_text(f"jobs/{JOB}/1/manifest.json", "{ half")
    assert second.artifacts.manifest(JOB, 1) is None


def test_every_object_by_what_it_belongs_to(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    first.publish(JOB, 1, evaluation=b"{}")
    first.artifacts.add(row("dataset", "ds_0123456789"), data_set(first.home.incoming / "found"))
    found = first.home.incoming / "file"
    found.write_bytes(b"weights")
    first.artifacts.add(row("checkpoint", "ckpt_0123456789"), found)
    objects = second.artifacts.objects()
    assert objects.keys() == {JOB, "ds_0123456789", "ckpt_0123456789"}
    assert objects["ckpt_0123456789"]["checkpoints/ckpt_0123456789.safetensors"].size == 7
    named = [parse(key) for key in objects[JOB]]
    assert {(one.job, one.claim, one.name) for one in named if one} == {
        (JOB, 1, "evaluation.json"), (JOB, 1, "manifest.json"),
    }  # fmt: skip
    assert parse("datasets/ds_0123456789.tar") is None and parse(f"jobs/{JOB}/x/manifest.json") is None


def test_ids_are_no_paths(hosts: tuple[Host, Host]) -> None:
    first, _ = hosts
    for ask in (first.artifacts.published, first.artifacts.remove_job, lambda job: first.artifacts.beside(job, "x")):
        with pytest.raises(RequestError, match="no such id"):
            ask("../../etc")
    assert first.artifacts.beside(JOB, "packed.zip") == first.home.cache / f"{JOB}.packed.zip"


def test_who_waits_for_a_file_can_stop(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    file = first.publish(JOB, 1, evaluation=b"{}")["evaluation"]
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        second.artifacts.hold(second.artifacts.file(file), stop)
    with pytest.raises(Stopped):
        second.artifacts.manifest(JOB, 1, stop)
    assert list(second.home.cache.iterdir()) == []


def test_the_same_folder_is_the_same_archive(tmp_path: Path) -> None:
    """Whoever owns it, and whenever it was written."""
    one, two = data_set(tmp_path / "one"), data_set(tmp_path / "two")
    os.utime(two / "cat/1.png", (1, 1))
    digests = [pack(folder, tmp_path / f"{folder.name}.tar") for folder in (one, two)]
    assert digests[0] == digests[1] == hashlib.sha256((tmp_path / "one.tar").read_bytes()).hexdigest()
    unpack(tmp_path / "one.tar", tmp_path / "back")
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")) == [
        "cat", "cat/1.png", "dog", "dog/1.png",
    ]  # fmt: skip
    (tmp_path / "junk.tar").write_bytes(b"junk" * 1000)
    with pytest.raises(RequestError, match="back: the data set in the store is no archive; upload it again"):
        unpack(tmp_path / "junk.tar", tmp_path / "back")


def test_it_is_said_when_the_store_does_not_work(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = hosts
    first.artifacts.check()
    monkeypatch.setattr(first.bucket._fs, "ls", lambda *_, **__: {}["away"])
    with pytest.raises(BucketError, match="cannot list objects"):
        first.artifacts.check()


def test_a_transfer_is_tried_again_ten_times_sooner_than_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(shared, "Bucket", lambda url, pause=0.0: (pauses.append(pause), Bucket(url, pause))[1])
    settings = QueueSettings(home=tmp_path / "home", artifacts=f"file://{tmp_path / 'store'}", retry_delay=20)
    made = shared.open_artifacts(settings, layout.home_of(settings))
    assert isinstance(made, SharedArtifacts) and pauses == [2.0]
