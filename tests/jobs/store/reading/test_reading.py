"""Lists, owners, and identifiers that nobody has made."""

from collections import defaultdict
from pathlib import Path

import pytest
from deeds import OUCH, RESULT, hold, new
from sampled import ON_SQLITE
from sqlalchemy.dialects import sqlite
from starlette.testclient import TestClient

from tcnn_api.app import create_app
from tcnn_api.settings import load
from tcnn_jobs.database.dialects import Document
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Kind, Making, Result, Status, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store

STRANGE = ["", "job_" + "0" * 24, "job_\0", "' OR 1=1 --", "é", "\ud800", "a\nb", "x" * 100_000]


@ON_SQLITE
def test_pages_newest_first(store: Store) -> None:
    """Every job once, also when some are deleted and others are submitted between two pages."""
    ids = [store.enqueue(new()).id for _ in range(11)]
    seen: list[str] = []
    after, more = None, True
    while more:
        page, more = store.list(after=after, limit=3)
        assert len(page) == 3 or not more
        seen += [job.id for job in page]
        after = seen[-1]
        store.enqueue(new())  # newer than the page, so it moves nothing
        if len(seen) == 3:
            store.delete(store.cancel(ids[5]).id)
    assert seen == [job for job in reversed(ids) if job != ids[5]]
    with pytest.raises(JobNotFound):
        store.list(after=ids[5])
    assert store.list(after=ids[0]) == ([], None)
    assert store.list("nobody") == ([], None)
    whole, more = store.list(limit=13)
    assert len(whole) == 13 and more


@ON_SQLITE
def test_filters(store: Store) -> None:
    """By owner, status and kind, together."""
    for owner in ("ann", "bob"):
        for kind in Kind:
            store.enqueue(new(owner=owner, kind=kind))
    store.cancel(store.list("ann", kind=Kind.EVALUATE)[0][0].id)
    assert len(store.list(limit=6)[0]) == 6
    assert [job.owner for job in store.list("bob")[0]] == ["bob"] * 3
    (only,), more = store.list("ann", status=Status.CANCELLED, limit=1)
    assert (only.kind, more) == (Kind.EVALUATE, None)
    assert store.list("ann", status=Status.CANCELLED, kind=Kind.TRANSFORM) == ([], None)
    assert only.model_copy(update={"queue_position": None}) == store.get(only.id)


def test_jobs_with_models(store: Store) -> None:
    """Those that have made one, and those that will, however many others are newer."""
    made, none, measured = (store.enqueue(new(kind=kind)).id for kind in (Kind.TRANSFORM, Kind.FINETUNE, Kind.EVALUATE))
    for result in (RESULT, Result(), RESULT):
        store.finish(hold(store.claim("w1")), result)
    running, queued = (store.enqueue(new(kind=kind)).id for kind in (Kind.FINETUNE, Kind.TRANSFORM))
    assert hold(store.claim("w1")).job == running
    store.enqueue(new(kind=Kind.EVALUATE))
    for _ in range(3):
        store.cancel(store.enqueue(new()).id)
    assert [store.get(job).status for job in (made, none, measured)] == [Status.SUCCEEDED] * 3
    assert [job.id for job in store.list("ann", model=Making.MADE, limit=1)[0]] == [made]
    assert [job.id for job in store.list("ann", model=Making.EXPECTED)[0]] == [queued, running]
    assert store.list("bob", model=Making.MADE) == store.list("ann", model=Making.MADE, after=made) == ([], None)
    assert store.list("ann", model=Making.MADE, status=Status.FAILED) == ([], None)


@ON_SQLITE
def test_another_owners_job_is_no_job(store: Store) -> None:
    """It looks just as one that does not exist, and stays as it is."""
    job = store.enqueue(new())
    page = store.list()
    for call in (store.get, store.cancel, store.resume, store.delete, store.events):
        with pytest.raises(JobNotFound, match=f"^{job.id}: no such job; GET /jobs lists yours$"):
            call(job.id, "bob")
    with pytest.raises(JobNotFound):
        store.list("bob", after=job.id)
    assert store.list() == page
    assert store.get(job.id, "ann") == job


@pytest.mark.parametrize("strange", STRANGE, ids=ascii)
def test_strange_identifiers(store: Store, strange: str) -> None:
    """Are not found, on one line, whatever the database would say to them."""
    for call in (store.get, store.cancel, store.resume, store.delete, store.events):
        with pytest.raises(JobNotFound) as caught:
            call(strange)
        assert str(caught.value).isascii() and "\n" not in str(caught.value)
    with pytest.raises(JobNotFound):
        store.list(after=strange)
    for look in (lambda: store.upload(strange, "dataset"), lambda: store.remove_upload(strange)):
        with pytest.raises(UploadNotFound):
            look()
    with pytest.raises(UploadNotFound):
        store.uploads("ann", "dataset", after=strange)
    assert store.known(STRANGE) == set()


@pytest.mark.parametrize("strange", STRANGE, ids=ascii)
def test_strange_tenants(store: Store, strange: str) -> None:
    """Have nothing."""
    job = store.enqueue(new())
    id = new_id("ds")
    upload = store.add_upload(
        Upload(id=id, owner="ann", kind="dataset", name="a", path="a", size=1, sha256="0" * 64)
    ).id
    assert store.list(strange) == store.uploads(strange, "dataset") == ([], None)
    for look in (lambda: store.list(strange, after=job.id), lambda: store.get(job.id, strange)):
        with pytest.raises(JobNotFound):
            look()
    for look in (
        lambda: store.uploads(strange, "dataset", after=upload), lambda: store.upload(upload, "dataset", strange),
        lambda: store.remove_upload(upload, strange),
    ):  # fmt: skip
        with pytest.raises(UploadNotFound):
            look()
    assert store.tenants(strange) == store.api_keys(strange) == []
    assert store.audit(tenant=strange) == store.audit(key=strange) == ([], False)


def test_no_parameter_of_a_request_is_too_strange_for_postgresql(own_postgres_url: str, tmp_path: Path) -> None:
    """All that the OpenAPI document knows, with a NUL, which it cannot store."""
    app = create_app(load(home=tmp_path / "home", database_url=own_postgres_url))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        store = Store(own_postgres_url)
        _, secret = store.create_key(NewKey(tenant="ann", scopes=frozenset(Scope)))
        there = {"id": store.enqueue(new()).id}
        store.close()
        asked = {}
        for path, operations in client.get("/openapi.json").json()["paths"].items():
            for parameter in operations.get("get", {}).get("parameters", ()):
                name, place = parameter["name"], parameter["in"]
                if place == "header":
                    continue
                filled = path.replace("{" + name + "}", "a%00b").format_map(defaultdict(lambda: "x", there))
                given = {name: "a\0b"} if place == "query" else {}
                answer = client.get(filled, params=given, headers={"Authorization": f"Bearer {secret}"})
                asked[path, name] = answer.status_code
    assert len(asked) > 50 and asked["/weights", "tenant"] == 200 and asked["/jobs/{id}", "id"] == 404
    assert max(asked.values()) < 500, asked


def test_whatever_a_request_holds_comes_back(store: Store) -> None:
    """Any text JSON can have, deep and long; numbers that it cannot have become null."""
    request = {
        "model": "é\0\ud800\u2028'\"\\",
        "nested": [{"a": [1, 2.5, -1e300, 2**60, True, None, ""]}] * 3,
        "long": "x" * 300_000,
        "strange": [float("nan"), float("inf"), {"x": -float("inf")}],
    }
    job = store.enqueue(new(request=request))
    assert store.get(job.id).request == {**request, "strange": [None, None, {"x": None}]}


def test_expired(store: Store) -> None:
    """Ended jobs only, those that ended first before the others."""
    jobs = [store.enqueue(new()).id for _ in range(5)]
    store.cancel(jobs[3])
    store.finish(hold(store.claim("w1")), RESULT)
    store.fail(hold(store.claim("w1")), OUCH)
    assert [job.id for job in store.expired(None)] == [jobs[3], jobs[0], jobs[1]]
    assert [job.id for job in store.expired(None, limit=2)] == [jobs[3], jobs[0]]
    assert store.expired(1) == []
    assert {job.id for job in store.expired(0)} <= {jobs[3], jobs[0], jobs[1]}


@ON_SQLITE
def test_uploads(store: Store) -> None:
    """Kept, found, listed by kind and owner in pages, and removed; `known` knows them beside the jobs."""
    made = [
        store.add_upload(
            Upload(
                id=f"{prefix}_{number:024}",
                owner=owner,
                kind=kind,
                name="pétales.zip",
                path=f"{kind}s/{number}",
                size=2**40,
                sha256="f" * 64,
                details={"classes": ["a", "b"], "images": number},
            )
        )
        for number, (prefix, kind, owner) in enumerate(
            [("ds", "dataset", "ann")] * 4 + [("ds", "dataset", "bob"), ("ckpt", "checkpoint", "ann")]
        )
    ]
    first, checkpoint = made[0], made[-1]
    assert first.created_at > 1e9
    assert store.upload(first.id, "dataset", "ann") == store.upload(first.id, "dataset") == first
    for id, kind, owner in ((first.id, "dataset", "bob"), (first.id, "checkpoint", None)):
        with pytest.raises(UploadNotFound, match=f"^{id}: no such {kind}; GET /{kind}s lists yours$"):
            store.upload(id, kind, owner)
    page, following = store.uploads("ann", "dataset", limit=3)
    assert page == [made[3], made[2], made[1]]
    assert store.uploads("ann", "dataset", after=following) == ([first], None)
    assert store.uploads("ann", "dataset", after=made[1].id) == ([first], None)
    assert store.uploads(None, "dataset")[0][0] == made[4]
    assert store.uploads("ann", "checkpoint") == ([checkpoint], None)
    with pytest.raises(UploadNotFound):
        store.uploads("ann", "dataset", after=checkpoint.id)
    with pytest.raises(UploadNotFound):
        store.remove_upload(first.id, "bob")
    assert store.remove_upload(first.id, "ann") == first
    with pytest.raises(UploadNotFound):
        store.remove_upload(first.id)
    job = store.enqueue(new())
    ids = [f"job_{number:024}" for number in range(1200)]
    assert store.known([job.id, checkpoint.id, first.id, *ids]) == {job.id, checkpoint.id}


def test_no_document_is_null_in_sql() -> None:
    """Not the text `null`, which no query would find."""
    column = Document()
    assert column.process_bind_param(None, sqlite.dialect()) is None
    assert column.process_bind_param({"a": [None, 1.5, float("nan")]}, sqlite.dialect()) == '{"a":[null,1.5,null]}'
