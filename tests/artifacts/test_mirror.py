"""What of an attempt is in the store while its job goes on writing: frozen, sent once, and named by the manifest."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from tcnn.errors import Stopped
from tcnn_jobs.artifacts.bucket import NEVER, Bucket, BucketError
from tcnn_jobs.artifacts.layout import Manifest, manifest_key
from tcnn_jobs.artifacts.mirror import Mirror
from tcnn_jobs.model.jobs import Artifact, Result

JOB = "job_0123456789"


class Watched(Bucket):
    """A store in a folder that notes what is sent, and meanwhile does something else."""

    def __init__(self, url: str) -> None:
        super().__init__(url, pause=0.0)
        self.sent: list[str] = []
        self.meanwhile: Callable[[Path], None] = lambda path: None
        self.removes = True

    def put(self, local: Path, key: str, sha256: str, stop: threading.Event = NEVER) -> None:
        self.sent.append(local.name)
        self.meanwhile(local)
        super().put(local, key, sha256, stop)

    def remove(self, *keys: str) -> None:
        if not self.removes:
            raise BucketError("SlowDown", again=True)
        super().remove(*keys)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(f"file://{tmp_path}/store")


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt"
    (folder / "run/resume").mkdir(parents=True)
    return folder


@pytest.fixture
def mirror(store: Watched, attempt: Path) -> Mirror:
    return Mirror(store, attempt, JOB, 1)


def named(store: Watched) -> dict[str, bytes]:
    """What the manifest names, as the store has it."""
    files = Manifest.model_validate_json(store.text(manifest_key(JOB, 1))).files
    objects = {key.rpartition("/")[2]: key for key in store.keys(f"jobs/{JOB}/1")}
    assert objects.keys() == {file.name for file in files} | {"manifest.json"}
    found = {}
    for file in files:
        content = store.open(objects[file.name]).read()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert objects[file.name].split("/")[3] == file.sha256
        found[file.path.removeprefix(f"{JOB}/1/")] = content
    return found


def test_only_what_is_new_is_sent_and_the_newest_resume_point(store: Watched, mirror: Mirror, attempt: Path) -> None:
    (attempt / "conversion.json").write_text("{}")
    (attempt / "run/metrics.jsonl").write_text("1\n")
    (attempt / "run/unknown.bin").write_bytes(b"nobody asks for it")
    for number in (1, 2):
        (attempt / f"run/resume/step-{number:09d}.safetensors").write_bytes(b"point %d" % number)
    mirror.update(NEVER)
    assert store.sent == ["step-000000002.safetensors", "conversion.json", "metrics.jsonl"]
    mirror.update(NEVER)
    assert len(store.sent) == 3
    with (attempt / "run/metrics.jsonl").open("a") as records:
        records.write("2\n")
    (attempt / "run/resume/step-000000003.safetensors").write_bytes(b"point 3")
    mirror.update(NEVER)
    assert store.sent[3:] == ["step-000000003.safetensors", "metrics.jsonl"]
    assert named(store) == {
        "conversion.json": b"{}",
        "run/metrics.jsonl": b"1\n2\n",
        "run/resume/step-000000003.safetensors": b"point 3",
    }


def test_records_that_grow_and_models_that_are_replaced_meanwhile(
    store: Watched, mirror: Mirror, attempt: Path
) -> None:
    """Sent is what there was at first, and the next time what came after. Models, which are large, are not copied."""
    records, best = attempt / "run/metrics.jsonl", attempt / "run/best.safetensors"
    records.write_text("1\n")
    best.write_bytes(b"first")

    def go_on(path: Path) -> None:
        assert path.parent.parent == attempt, "with which it goes, should this process be killed now"
        if path.name == records.name:
            with records.open("a") as more:
                more.write("2\n")
        else:
            assert path.samefile(best), "a link takes no room"
            (attempt / "new").write_bytes(b"second")
            (attempt / "new").replace(best)

    store.meanwhile = go_on
    mirror.update(NEVER)
    assert named(store) == {"run/metrics.jsonl": b"1\n", "run/best.safetensors": b"first"}
    store.meanwhile = lambda path: None
    mirror.update(NEVER)
    assert named(store) == {"run/metrics.jsonl": b"1\n2\n", "run/best.safetensors": b"second"}
    assert not list(attempt.glob(".mirror_*"))


def test_where_files_cannot_be_linked_models_are_copied(
    store: Watched, mirror: Mirror, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (attempt / "converted.safetensors").write_bytes(b"weights")
    mirror.update(NEVER)
    mirror.update(NEVER)
    assert named(store) == {"converted.safetensors": b"weights"} and store.sent == ["converted.safetensors"]


def test_what_is_touched_but_the_same_is_not_sent_again(store: Watched, mirror: Mirror, attempt: Path) -> None:
    path = attempt / "conversion.json"
    path.write_text("{}")
    mirror.update(NEVER)
    os.utime(path, (1, 1))
    mirror.update(NEVER)
    assert store.sent == ["conversion.json"]


def test_what_is_removed_goes_from_the_store(store: Watched, mirror: Mirror, attempt: Path) -> None:
    for name in ("conversion.json", "log.txt"):
        (attempt / name).write_text(name)
    mirror.update(NEVER)
    (attempt / "log.txt").unlink()
    mirror.update(NEVER)
    assert named(store) == {"conversion.json": b"conversion.json"}


def test_what_could_not_be_removed_is_removed_by_a_later_update(store: Watched, mirror: Mirror, attempt: Path) -> None:
    best = attempt / "run/best.safetensors"

    def improve(content: bytes) -> None:
        (attempt / "new").write_bytes(content)
        (attempt / "new").replace(best)
        mirror.update(NEVER)

    store.removes = False
    with structlog.testing.capture_logs() as logs:
        for content in (b"first", b"second", b"third", b"first"):
            improve(content)
    assert [(row["event"], row["objects"]) for row in logs] == [("could not remove", number) for number in (1, 2, 2)]
    store.removes = True
    mirror.update(NEVER)
    assert named(store) == {"run/best.safetensors": b"first"}
    assert len(store.keys("jobs")) == 2, "with its manifest"


def test_a_result_is_published_though_something_old_cannot_be_removed(
    store: Watched, mirror: Mirror, attempt: Path
) -> None:
    best = attempt / "run/best.safetensors"
    best.write_bytes(b"first")
    mirror.update(NEVER)
    best.unlink()
    best.write_bytes(b"the second")
    store.removes = False
    digest = hashlib.sha256(b"the second").hexdigest()
    file = Artifact(name=best.name, path=f"{JOB}/1/run/{best.name}", size=10, sha256=digest)
    mirror.publish(Result(files=(file,)), NEVER)
    assert manifest_key(JOB, 1) in store.keys("jobs") and len(store.keys("jobs")) == 3


def test_a_result_is_in_the_store_as_it_was_announced(store: Watched, mirror: Mirror, attempt: Path) -> None:
    (attempt / "converted.safetensors").write_bytes(b"weights")

    def announced(content: bytes, name: str = "converted.safetensors") -> Result:
        digest = hashlib.sha256(content).hexdigest()
        return Result(files=(Artifact(name=name, path=f"{JOB}/1/{name}", size=len(content), sha256=digest),))

    mirror.publish(announced(b"weights"), NEVER)
    assert named(store) == {"converted.safetensors": b"weights"}
    for wrong in (announced(b"others"), announced(b"weights", "run/best.safetensors")):
        with pytest.raises(BucketError, match="not what was announced when it was to be sent") as said:
            mirror.publish(wrong, NEVER)
        assert said.value.again


def test_it_stops_when_it_is_asked_to(store: Watched, mirror: Mirror, attempt: Path) -> None:
    (attempt / "log.txt").write_text("hello")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        mirror.update(stop)
    assert store.keys("jobs") == {}
