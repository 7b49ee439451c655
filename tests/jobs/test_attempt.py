"""What a worker and a job's process say to each other through a directory."""

import threading
from pathlib import Path

import pytest
from houses import House

from tcnn.config import ConversionConfig, build
from tcnn.errors import RequestError
from tcnn_jobs import attempt
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Listener, Outcome, Reporter
from tcnn_jobs.attempts.starting import resolve
from tcnn_jobs.model.jobs import Failure, Kind, Progress, Result, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.model.requests import FinetuneRequest, TransformRequest, as_stored


@pytest.fixture
def directory(tmp_path: Path) -> AttemptDirectory:
    directory = AttemptDirectory(tmp_path / "1")
    directory.create()
    directory.write(Assignment(job="job_1", claim=1, kind=Kind.TRANSFORM, request={"model": "resnet18"}))
    return directory


def test_the_assignment_arrives(directory: AttemptDirectory) -> None:
    assert directory.assignment().request == {"model": "resnet18"}


def test_everything_that_a_request_names_has_its_place(tmp_path: Path) -> None:
    """By the names under which the job's process looks for it; what is a name already has none."""
    house = House(tmp_path / "home")
    ids = {}
    for kind, prefix in (("checkpoint", "ckpt"), ("weights", "wts"), ("dataset", "ds")):
        upload = Upload(id=new_id(prefix), owner="local", kind=kind, name="a", path="a", size=1, sha256="0" * 64)
        ids[kind] = house.store.add_upload(upload).id
    other = {"model": "resnet18", "weights": ids["weights"]}
    request = {"checkpoint": ids["checkpoint"], "dataset": ids["dataset"], "against": [{"model": "resnet34"}, other]}
    job = house.submit(kind=Kind.EVALUATE, request=request)
    found = resolve(job, house.store, house.artifacts)
    assert {field: Path(place.path) for field, place in found.items()} == {
        "source": house.home.checkpoint(ids["checkpoint"]),
        "against.1.weights": house.home.checkpoint(ids["weights"]),
        "dataset": house.home.dataset(ids["dataset"]),
    }
    house.store.close()


def test_nothing_said_is_nothing_heard(directory: AttemptDirectory) -> None:
    listener = Listener(directory)
    assert listener.progress() is None
    assert listener.events() == ()
    assert directory.outcome() is None
    assert directory.last_words() == ""


def test_only_new_progress_is_heard(directory: AttemptDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, listener = Reporter(directory), Listener(directory)
    monkeypatch.setattr(Reporter, "INTERVAL", 0.0)
    reporter.progress(Progress(phase="training", step=1))
    assert listener.progress() == Progress(phase="training", step=1)
    assert listener.progress() is None
    reporter.progress(Progress(phase="training", step=2))
    assert listener.progress() == Progress(phase="training", step=2)


def test_steps_are_not_all_written_but_every_phase_is(
    directory: AttemptDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reporter, "INTERVAL", 600.0)  # however slow the machine
    reporter, listener = Reporter(directory), Listener(directory)
    for step in range(200):
        reporter.progress(Progress(phase="training", step=step))
    assert listener.progress() == Progress(phase="training", step=0)
    reporter.progress(Progress(phase="validating"))
    assert listener.progress() == Progress(phase="validating")
    reporter.progress(Progress(phase="training", step=201))
    assert listener.progress() == Progress(phase="training", step=201)
    assert [event.data["phase"] for event in listener.events()] == ["training", "validating"], "each is told once"


def test_events_are_heard_once_in_order_and_whole(directory: AttemptDirectory) -> None:
    reporter, listener = Reporter(directory), Listener(directory)
    reporter.event("epoch", epoch=0)
    reporter.event("epoch", epoch=1)
    file = directory.path / "events.jsonl"
    with file.open("a") as handle:
        handle.write('{"kind": "epo')
    assert [event.data["epoch"] for event in listener.events()] == [0, 1]
    assert listener.events() == ()
    with file.open("a") as handle:
        handle.write('ch", "data": {"epoch": 2}}\n')
    assert [event.data["epoch"] for event in listener.events()] == [2]


def test_a_damaged_line_costs_no_other(directory: AttemptDirectory) -> None:
    reporter, listener = Reporter(directory), Listener(directory)
    with (directory.path / "events.jsonl").open("w") as handle:
        handle.write('{"kind": "ep\n[1]\n')
    reporter.event("message", text="“quoted”\nand broken")
    assert [event.data["text"] for event in listener.events()] == ["“quoted”\nand broken"]


def test_many_events_come_in_parts(directory: AttemptDirectory) -> None:
    reporter, listener = Reporter(directory), Listener(directory)
    for number in range(25):
        reporter.event("message", number=number)
    heard = [listener.events(10) for _ in range(4)]
    assert [len(part) for part in heard] == [10, 10, 5, 0]
    assert [event.data["number"] for part in heard for event in part] == list(range(25))


def test_progress_is_never_read_half_written(directory: AttemptDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reporter, "INTERVAL", 0.0)
    reporter, listener = Reporter(directory), Listener(directory)
    wrong: list[str] = []
    done = threading.Event()

    def watch() -> None:
        path = directory.path / "progress.json"
        while not done.is_set():
            if path.exists():
                try:
                    Progress.model_validate_json(path.read_text())
                except ValueError as error:
                    wrong.append(str(error))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for step in range(500):
        reporter.progress(Progress(phase="training", step=step, loss=step / 7))
    done.set()
    watcher.join()
    assert wrong == []
    assert listener.progress() == Progress(phase="training", step=499, loss=499 / 7)


def test_the_outcome_is_whole_or_not_there(directory: AttemptDirectory) -> None:
    outcome = Outcome(error=Failure(code="storage", message="no space left"), retry=True)
    directory.finish(outcome)
    assert directory.outcome() == outcome
    (directory.path / "outcome.json").write_text('{"result": {"che')
    assert directory.outcome() is None
    directory.finish(Outcome(result=Result(notes=("a",))))
    assert directory.outcome() == Outcome(result=Result(notes=("a",)))


def test_an_attempt_begins_in_a_fresh_directory_though_its_name_is_taken(tmp_path: Path) -> None:
    """A claim's number comes again after an older database was restored."""
    told = Assignment(job="job_1", claim=3, kind=Kind.TRANSFORM, request={"model": "resnet18"})
    before = AttemptDirectory(tmp_path / "3")
    before.create()
    before.write(told)
    before.finish(Outcome(result=Result(notes=("stale",))))
    now = AttemptDirectory(tmp_path / "3")
    now.create()
    now.write(Assignment(**told.model_dump(exclude={"token"})))
    assert now.outcome() is None
    assert [path.name for path in now.path.iterdir()] == ["assignment.json"]
    (aside,) = (path for path in tmp_path.iterdir() if path.name != "3")
    assert aside.name.startswith("3.") and (aside / "outcome.json").is_file()


def test_an_outcome_of_another_attempt_is_not_believed(directory: AttemptDirectory) -> None:
    outcome = Outcome(result=Result(notes=("stale",)))
    (directory.path / "outcome.json").write_text(outcome.model_dump_json())
    assert directory.outcome() is None
    (directory.path / "outcome.json").write_text(outcome.model_copy(update={"token": "0" * 32}).model_dump_json())
    assert directory.outcome() is None
    directory.finish(outcome)
    assert directory.outcome() == outcome
    assert AttemptDirectory(directory.path).outcome() == outcome


def test_last_words_are_the_logs_last_line(directory: AttemptDirectory) -> None:
    directory.log.write_bytes(b"x" * 10_000 + b"\nfirst\nSegmentation fault \xff\n\n  \n")
    assert directory.last_words() == "Segmentation fault \ufffd"
    assert len(AttemptDirectory(directory.path).last_words(5)) == 5


def test_an_outcome_is_on_disk_before_anybody_is_told(
    directory: AttemptDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the file, then its name; progress is worth nothing after a power cut, and waits for no disk."""
    outcome, order = directory.path / "outcome.json", []

    def file(path: Path) -> None:
        order.append((path.name, outcome.exists()))

    def folder(path: Path) -> None:
        order.append((path.name, outcome.exists()))

    monkeypatch.setattr(attempt, "to_disk", file)
    monkeypatch.setattr(attempt, "folder_to_disk", folder)
    Reporter(directory).progress(Progress(phase="training", step=1))
    assert order == []
    directory.finish(Outcome(result=Result(metrics={"top1": 0.5})))
    assert order == [(".outcome.json.tmp", False), (directory.path.name, True)]


def test_requests_of_an_earlier_release_have_a_stage_beside_a_target() -> None:
    """They run as they did; nobody may ask so any more."""
    both = {"stage": 3, "target": "layer4.*"}
    transform = as_stored(TransformRequest, {"model": "resnet18", "head_dim": 8, **both})
    assert transform.conversion == ConversionConfig(target="layer4.*", head_dim=8)
    tuned = as_stored(
        FinetuneRequest, {"model": "resnet18", "dataset": "ds_1", "config": {"lr": 1, "conversion": both}}
    )
    assert (tuned.settings.conversion.target, tuned.settings.conversion.stage, tuned.settings.lr) == ("layer4.*", -1, 1)
    assert as_stored(TransformRequest, {"model": "resnet18", "stage": 3}).stage == 3
    with pytest.raises(RequestError, match=r"^target: names the convolutions, so that stage 3 has no effect"):
        build(TransformRequest, {"model": "resnet18", **both})
