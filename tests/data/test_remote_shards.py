"""Shards in a store: the same images in the same order as from the disk, and an outage changes nothing of it."""

import asyncio
import functools
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from data_pictures import picture
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from s3 import BUCKET, Gate, s3
from sampled import sampled

from tcnn.data.image_set import ImageSet, open_dataset, training_transform
from tcnn.data.loader import TrainingLoader
from tcnn.data.sources import remote
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError
from tcnn_jobs.artifacts.bucket import Bucket


def shard(first: int, count: int = 5) -> bytes:
    """Pictures of three classes in turn, half of them labelled the other way."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(first, first + count):
            encoded = io.BytesIO()
            picture(number).save(encoded, "PNG")
            label = ("cls", str(number % 3)) if number % 2 else ("json", f'{{"label": {number % 3}}}')
            for name, content in (("png", encoded.getvalue()), (label[0], label[1].encode())):
                info = tarfile.TarInfo(f"{number:04}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@functools.cache
def shards() -> dict[str, bytes]:
    return {f"train-{number:03}.tar": shard(5 * number) for number in range(3)} | {"val-000.tar": shard(100, 3)}


NAMES = b"zero\none\ntwo\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Gate]:
    with s3() as gate, pytest.MonkeyPatch.context() as patch:
        for name, value in gate.environment.items():
            patch.setenv(name, value)
        remote._filesystem.cache_clear()
        files = gate._files()
        for name, content in shards().items():
            files.pipe_file(f"{BUCKET}/set/{name}", content)
        files.pipe_file(f"{BUCKET}/set/classes.txt", NAMES)
        files.pipe_file(f"{BUCKET}/few/a.tar", shard(0))
        files.pipe_file(f"{BUCKET}/few/classes.txt", b"zero\n")
        yield gate
        remote._filesystem.cache_clear()


class Hurried:
    """`asyncio` as the store's client sees it here: it does not wait between its own attempts."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def gate(server: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The server, and a memory of indices of this test alone."""
    import aiobotocore.endpoint
    import s3fs.core

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_PAUSE", 0.01)
    for client in (s3fs.core, aiobotocore.endpoint):
        monkeypatch.setattr(client, "asyncio", Hurried())
    server.refuse = lambda method, path: None
    server.seen.clear()
    yield server


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, content in shards().items():
        (folder / name).write_bytes(content)
    (folder / "classes.txt").write_bytes(NAMES)
    return folder


def epoch(data: ImageSet, workers: int, start_step: int = 0) -> list[torch.Tensor]:
    transform = training_transform(size=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)
    loader = TrainingLoader(data, transform, batch_size=3, micro_batch=3, seed=7, workers=workers)
    batches = list(loader.epoch(1, start_step=start_step))
    loader.close()
    assert not any(batch.unreadable for batch in batches)
    return [batch.images for batch in batches]


@pytest.mark.parametrize(
    "spec", sampled(["", "/train-{000..002}.tar", "/train-*.tar", "/train-001.tar"], ["", "/train-001.tar"])
)
def test_they_are_what_they_are_on_the_disk(gate: Gate, on_disk: Path, spec: str) -> None:
    ours, theirs = open_dataset(f"wds/s3://{BUCKET}/set{spec}"), open_dataset(f"wds/{on_disk}{spec}")
    assert ours.class_names == theirs.class_names == ("zero", "one", "two")
    assert ours.targets.tolist() == theirs.targets.tolist() and ours.split == theirs.split
    for index in range(len(theirs)):
        assert ours.load(index)[0].tobytes() == theirs.load(index)[0].tobytes()
    assert ours.filename(3) == theirs.filename(3).replace(str(on_disk), f"s3://{BUCKET}/set")


@pytest.mark.slow  # that images and order are the same is above
def test_order_and_resume_are_those_of_the_disk(gate: Gate, on_disk: Path) -> None:
    ours, theirs = open_dataset(f"s3://{BUCKET}/set"), open_dataset(f"wds/{on_disk}")
    expected = epoch(theirs, workers=0)
    found = epoch(ours, workers=1)
    resumed = epoch(ours, workers=0, start_step=2)
    assert len(expected) == 5
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(resumed, expected[2:], strict=True))


def test_a_shard_is_looked_through_once_and_an_image_is_one_request(gate: Gate) -> None:
    spec = f"wds/s3://{BUCKET}/set/train-{{000..002}}.tar"
    open_dataset(spec)
    gate.seen.clear()
    data = open_dataset(spec)
    assert not [path for method, path in gate.seen if method == "GET" and path.endswith(".tar")]
    gate.seen.clear()
    data.load(11)
    assert gate.seen == [("GET", f"/{BUCKET}/set/train-002.tar")]


def test_where_nothing_can_be_kept_shards_are_looked_through_again(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder belongs")
    for _ in range(2):
        gate.seen.clear()
        assert len(open_dataset(f"wds/s3://{BUCKET}/set/train-001.tar")) == 5
        assert ("GET", f"/{BUCKET}/set/train-001.tar") in gate.seen
    assert (tmp_path / "cache").is_file()


def test_a_shard_that_was_replaced_is_looked_through_again(gate: Gate) -> None:
    files, spec = gate._files(), f"s3://{BUCKET}/other/a.tar"
    for first, count in ((0, 2), (5, 3)):
        files.pipe_file(f"{BUCKET}/other/a.tar", shard(first, count))
        data = open_dataset(f"wds/{spec}")
        assert [data.filename(index) for index in range(len(data))][-1].endswith(f"{first + count - 1:04}.png")


class Unsigned(MemoryFileSystem):
    """A store that tells nothing by which a changed object is known."""

    def info(self, path: str, **options: object) -> dict[str, object]:
        found: dict[str, object] = super().info(path, **options)
        return {name: found[name] for name in ("name", "size", "type")}


@pytest.mark.parametrize(("url", "kept"), [("file://{}/a.tar", 1), ("memory://set/a.tar", 1), ("unsigned://a.tar", 0)])
def test_one_of_the_same_size_in_its_place_is_noticed_in_any_store(
    url: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tar files are padded, so that sizes are often equal. Without an ETag they were read by the old index."""
    register_implementation("unsigned", Unsigned, clobber=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = url.format(tmp_path)
    files, path = remote.filesystem(url)
    for first in (0, 5):
        files.pipe_file(path, shard(first).ljust(1 << 16, b"\0"))
        for _ in range(2):
            data = open_dataset(f"wds/{url}")
            assert [data.filename(index)[-8:] for index in range(5)] == [f"{first + n:04}.png" for n in range(5)]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2 * kept


def test_an_outage_is_waited_for_and_never_passed_over(gate: Gate) -> None:
    data = open_dataset(f"s3://{BUCKET}/set/train-000.tar")
    expected = data.load(2)[0].tobytes()
    left = [12]

    def briefly(method: str, path: str) -> tuple[int, str] | None:
        left[0] -= 1
        return (503, "ServiceUnavailable") if left[0] > 0 else None

    gate.refuse = briefly
    assert data.load(2)[0].tobytes() == expected
    gate.refuse = lambda method, path: (503, "ServiceUnavailable")
    with pytest.raises(DownloadError, match=r"^s3://results/set/train-000.tar: the store does not answer \("):
        epoch(data, workers=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wds/s3://results/none", "expected shards .* found none"),
        ("wds/s3://results/set/train-{007..008}.tar", r"train-007\.tar: no such object in the store"),
        ("wds/s3://results/set/test-*.tar", "no such shard in the store"),
        ("s3://results/set/classes.tar", "no such object"),
        ("nonsense://results/a.tar", "expected s3:// or another store"),
        ("wds/s3://results/few/a.tar", r"s3://results/few/classes\.txt: names 1 class; the shards use label 2"),
    ],
)
def test_what_is_not_there(gate: Gate, spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as said:
        open_dataset(spec)
    assert "\n" not in str(said.value)


def test_a_store_that_refuses(gate: Gate) -> None:
    gate.refuse = lambda method, path: (403, "AccessDenied")
    with pytest.raises(RequestError, match=r"the store refuses to give it .* check the keys"):
        open_dataset(f"s3://{BUCKET}/set/train-000.tar")


@pytest.mark.parametrize(
    ("url", "library", "advice"),
    [
        (
            "https://localhost/a.tar",
            "aiohttp",
            r"https:// needs a library that is missing: pip install 'fsspec\[http\]'$",
        ),
        ("s3://none/a.tar", "s3fs", r"s3:// needs a library that is missing: pip install 'tcnn\[s3\]'$"),
        ("gs://none/a.tar", "gcsfs", r"gs:// needs a library that is missing: .*\bgcsfs\b"),
    ],
)
def test_a_store_whose_library_is_missing(url: str, library: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_before = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(loaded_before, url.partition("://")[0], raising=False)
    for loaded in [name for name in sys.modules if name.startswith(("fsspec.implementations.http", f"{library}."))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    remote._filesystem.cache_clear()
    with pytest.raises(EnvironmentFailure, match=f"^{advice}"):
        open_dataset(url)
    with pytest.raises(EnvironmentFailure, match=f"^{url}: {advice}"):
        Bucket(url)
