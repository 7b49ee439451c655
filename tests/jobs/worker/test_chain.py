"""Three jobs in one go, by a real worker: what the one makes the next one finds."""

from houses import House

from tcnn_jobs.model.jobs import Kind, Status

SCRIPT = """
told = json.loads((here / "assignment.json").read_text())
if told["kind"] != "transform": event("found", text=Path(told["paths"]["source"]).read_text())
made = here / "converted.safetensors"
made.write_text(f"of {told['kind']}")
name = f"{told['job']}/{told['claim']}/{made.name}"
file = {"name": made.name, "path": name, "size": made.stat().st_size, "sha256": "0" * 64}
outcome(result={"checkpoint": file, "files": [file]})
"""


def test_what_one_makes_the_next_one_finds(house: House) -> None:
    first = house.submit()
    second = house.submit(kind=Kind.FINETUNE, request={"job": first.id, "dataset": "x"}, priority=5)
    third = house.submit(kind=Kind.EVALUATE, request={"job": second.id, "dataset": "x"}, priority=9)
    house.worker(SCRIPT, slots=3).run(until_empty=True)
    for job, text in ((second, "of transform"), (third, "of finetune")):
        assert house.store.get(job.id).status is Status.SUCCEEDED, house.store.get(job.id).error
        assert [event.data["text"] for event in house.store.events(job.id) if event.kind == "found"] == [text]


def test_nothing_of_a_job_is_begun_whose_source_fails(house: House) -> None:
    first = house.submit(max_attempts=2)
    second = house.submit(kind=Kind.FINETUNE, request={"job": first.id, "dataset": "x"})
    house.worker("sys.exit(1)", slots=2).run(until_empty=True)
    after = house.store.get(second.id)
    assert (after.status, after.claim) == (Status.FAILED, 0)
    assert house.kinds(first).count("retrying") == 1
    assert not house.home.job(second.id).exists()
