"""Names, tags and notes of jobs; lists that are searched and in another order than that of submission."""

import itertools
import unicodedata

import pytest
from deeds import hold, new
from sampled import ON_SQLITE
from sqlalchemy import update

from tcnn.errors import ConfigError, RequestError
from tcnn_jobs.database.schema import jobs
from tcnn_jobs.errors import IdempotencyMismatch, JobNotFound
from tcnn_jobs.model.columns import Order
from tcnn_jobs.model.jobs import IdempotencyKey, Job, Kind, Result, Upload
from tcnn_jobs.model.naming import Labels, new_id
from tcnn_jobs.model.operation import Actor, acting
from tcnn_jobs.store import Store
from tcnn_jobs.store.reading import listing


def found(store: Store, *, order: str = "-created", **options: object) -> list[str]:
    """Ids of all pages of two jobs each, as they are listed."""
    seen: list[str] = []
    following, more = None, True
    while more:
        by_place, by_id = (
            store.list("ann", after=after, limit=2, order=Order.of(order), **options)  # type: ignore[arg-type]
            for after in (following, seen[-1] if seen else None)
        )
        assert by_place == by_id
        page, following = by_place
        seen += [job.id for job in page]
        more = following is not None
    assert len(set(seen)) == len(seen)
    return seen


@ON_SQLITE
def test_a_job_is_called_something_else(store: Store) -> None:
    """What an edit leaves out stays, the same again changes nothing, and each change is in the audit log once."""
    job = store.enqueue(new(name="first", tags=("a", "b"), note="one\ntwo"))
    assert (job.name, job.tags, job.note) == ("first", ("a", "b"), "one\ntwo")
    with acting(Actor(tenant="ann", key="k")):
        for _ in range(2):
            named = store.label(job.id, "ann", Labels(name=" réseau \U0001f600 "))
            assert (named.name, named.tags, named.note) == ("réseau \U0001f600", ("a", "b"), "one\ntwo")
        gone = store.label(job.id, "ann", Labels(name=None, tags=(), note=""))
    assert (gone.name, gone.tags, gone.note) == (None, (), None)
    assert [entry.action for entry in store.audit()[0]] == ["job.label"] * 2
    with pytest.raises(JobNotFound):
        store.label(job.id, "bob", Labels(name="mine"))
    assert store.get(job.id) == gone
    assert gone == job.model_copy(update={"name": None, "tags": (), "note": None})


@ON_SQLITE
def test_an_edit_with_a_key_is_done_once(store: Store) -> None:
    """A repeated request does not take back what was said after it."""
    job, key = store.enqueue(new()), IdempotencyKey("ann", "k", "1")
    store.label(job.id, "ann", Labels(name="a"), key)
    store.label(job.id, "ann", Labels(name="b"))
    assert store.label(job.id, "ann", Labels(name="a"), key).name == "b"
    with pytest.raises(IdempotencyMismatch):
        store.label(job.id, "ann", Labels(name="c"), key._replace(digest="2"))


@ON_SQLITE
def test_what_a_worker_writes_leaves_labels_alone(store: Store) -> None:
    """A running job is named; it ends with its name."""
    job = store.enqueue(new(tags=("x",)))
    claim = hold(store.claim("w1"))
    store.label(job.id, "ann", Labels(name="while it runs"))
    ended = store.finish(claim, Result())
    assert (ended.name, ended.tags, ended.status) == ("while it runs", ("x",), "succeeded")


def test_search_and_tags(store: Store) -> None:
    """All words, in any case, of labels and requests, with signs that SQL or JSON would take for their own."""
    plain = store.enqueue(new(request={"model": "resnet50d", "finetune": {"dataset": "ds_pets"}})).id
    named = store.enqueue(new(name='50% of "Ödland_x"', tags=("ablation", "a'b"), note="Straße")).id
    other = store.enqueue(new(kind=Kind.EVALUATE, tags=("Ablation", "b"))).id
    store.enqueue(new(owner="bob", name="resnet50d", tags=("ablation",)))
    for search, expected in (
        ("RESNET50D", [plain]), ("pets resnet", [plain]), ("resnet18", [other, named]), ("50%", [named]),
        ("%", [named]), ("ödland_X", [named]), ("STRASSE", [named]), ("_x", [named]), ("evaluate", [other]),
        (plain[4:12], [plain]),
        ("pets evaluate", []), ("model", []), ("' OR 1=1 --", []), ("", [other, named, plain]),
    ):  # fmt: skip
        assert found(store, search=search) == expected, search
    for tags, expected in (
        (["ablation"], [named]), (["Ablation"], [other]), (["b"], [other]), (["Ablation", "b"], [other]),
        (["a'b"], [named]), (["abl"], []), (["ablation", "b"], []), (["\0", "é"], []),
    ):  # fmt: skip
        assert found(store, tags=tags) == expected, tags
    assert found(store, search="x", tags=["ablation"], kind=Kind.TRANSFORM) == [named]
    store.label(plain, "ann", Labels(note="now of oak"))
    assert found(store, search="oak pets") == [plain]


def test_accents_in_either_spelling_are_found(store: Store) -> None:
    """Composed, or apart as in file names from a Mac; also where an older release stored words as they were spelt."""
    composed, apart = (unicodedata.normalize(form, "Café Épagneul") for form in ("NFC", "NFD"))
    jobs_of = [store.enqueue(new(name=name, tags=(name,), note=name)).id for name in (composed, apart)][::-1]
    for _ in range(2):
        for search in (composed, apart, composed.upper(), apart.casefold()):
            assert found(store, search=search) == jobs_of, search
        assert found(store, tags=[composed]) == found(store, tags=[apart]) == jobs_of
        for job in jobs_of:
            with store.writing() as connection:
                spelt = f"{store.get(job).name}\n{job}".casefold()
                connection.execute(update(jobs).where(jobs.c.id == job).values(words=spelt))


def test_what_a_request_names_is_found_by_its_name(store: Store) -> None:
    """Uploads and jobs, by what they were called then; another tenant's are not told."""
    data = Upload(id=new_id("ds"), owner="ann", kind="dataset", name="tiny Café.tar.gz", path="a", size=1, sha256="0")
    hidden = data.model_copy(update={"id": new_id("ds"), "owner": "bob", "name": "secret.zip"})
    for upload in (data, hidden):
        store.add_upload(upload)
    first = store.enqueue(new(name="the first", request={"model": "resnet50d", "finetune": {"dataset": data.id}}))
    unnamed = store.enqueue(new(request={"model": "seresnext"}))
    for _ in range(2):
        store.finish(hold(store.claim("w1")), Result())
    second = store.enqueue(new(request={"job": first.id, "dataset": data.id, "seen": hidden.id})).id
    third = store.enqueue(new(request={"job": unnamed.id})).id
    assert found(store, search="TINY café.tar.gz") == [second, first.id]
    assert found(store, search="first") == [second, first.id]
    assert found(store, search="seresnext") == [third, unnamed.id]
    assert found(store, search="secret") == []
    for job in (second, third):
        store.cancel(job)
    store.remove_upload(data.id)
    store.label(second, "ann", Labels(name="old"))
    store.label(second, "ann", Labels(name="new", note="a"))
    assert found(store, search="new tiny café") == [second], "it is called so though it is gone"
    assert found(store, search="old") == []
    with store.writing() as connection:
        connection.execute(update(jobs).values(words=None))
    store.label(third, "ann", Labels(name="again"))
    assert found(store, search="seresnext again") == [third], "of a job that an older release submitted"


def test_jobs_of_an_older_release_are_found(store: Store) -> None:
    """It writes no words to search through; what is named later has them."""
    job = store.enqueue(new(request={"model": "ResNet18"}))
    with store.writing() as connection:
        connection.execute(update(jobs).values(words=None))
    assert found(store, search="resnet18 TRANSFORM") == found(store, search=job.id) == [job.id]
    store.label(job.id, "ann", Labels(name="old"))
    assert found(store, search="old resnet18") == [job.id]


def made(store: Store) -> dict[str, Job]:
    """Jobs with numbers in requests and results, in several places, equal, and missing."""
    strange = {"model": "\0\ud800\\u0000\\\0\\ud8", "config": {"lr": 10**400}}
    requests = {
        "a": {"config": {"lr": 0.1}}, "b": {"finetune": {"config": {"lr": 0.3}}}, "c": {"lr": 1},
        "d": {"config": {"lr": "0.2"}}, "e": {"config": {"lr": 0.1}}, "f": strange, "g": {},
    }  # fmt: skip
    jobs = {name: store.enqueue(new(request=request, name=name.upper())) for name, request in requests.items()}
    metrics = {
        "a": {"top1": 0.5, "best_top1": 0.9}, "b": {"top1": 1}, "c": {"rows": [{"clean": {"top1": 0.7}}]},
        "d": {"top1": None},
        "e": {"top1": 0.5, "deep": {"er": {"x": 2}}},
    }  # fmt: skip
    for name, told in metrics.items():
        claim = hold(store.claim("w1"))
        assert claim.job == jobs[name].id
        store.finish(claim, Result(metrics=told))
    return jobs


def test_orders(store: Store) -> None:
    """Every job once, those without a value last either way, equal ones the newest first."""
    ids = {job.id: name for name, job in made(store).items()}
    for order, expected in (
        ("created", "abcdefg"), ("-created", "gfedcba"), ("name", "abcdefg"), ("-name", "gfedcba"),
        ("settings.lr", "eabcgfd"), ("-settings.lr", "cbeagfd"), ("metrics.top1", "eacbgfd"),
        ("-metrics.top1", "bceagfd"), ("-metrics.accuracy", "acgfedb"),
        ("metrics.deep.er.x", "egfdcba"), ("metrics.no-such", "gfedcba"),
        ("settings.model", "gfedcba"),
    ):  # fmt: skip
        assert "".join(ids[job] for job in found(store, order=order)) == expected, order
    for order in ("started", "-finished", "duration"):
        seen = "".join(ids[job] for job in found(store, order=order))
        assert sorted(seen) == list("abcdefg") and seen.endswith("gf"), order
    assert "".join(ids[job] for job in found(store, order="-metrics.top1", kind=Kind.EVALUATE)) == ""


@ON_SQLITE
def test_a_page_in_an_order_begins_after_a_job_that_is_filtered_out(store: Store) -> None:
    """As pages of the newest do: it was there when the page before was read."""
    jobs = made(store)
    last = store.label(jobs["b"].id, "ann", Labels(tags=["gone"]))
    page, more = store.list("ann", after=last.id, limit=3, order=Order.of("-metrics.top1"), search="transform")
    assert [job.name for job in page] == ["C", "E", "A"] and more


@ON_SQLITE
def test_what_is_looked_at_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest jobs that the other filters leave, however many pages are read: one tenant's lists cost the others
    no more when it has many jobs."""
    kinds = Kind.TRANSFORM, Kind.EVALUATE
    made = [
        store.enqueue(new(name=f"{'oak' if number == 2 else 'ash'} {number}", tags=("x",), kind=kinds[number % 2])).id
        for number in range(8)
    ]
    for _ in range(5):
        store.enqueue(new(owner="bob"))
    monkeypatch.setattr(listing, "ORDERED", 3)
    monkeypatch.setattr(listing, "SEARCHED", 5)
    assert found(store) == made[::-1] and found(store, order="created") == made
    assert found(store, order="finished") == made[:4:-1]
    assert found(store, order="-settings.lr", kind=Kind.TRANSFORM) == [made[6], made[4], made[2]]
    assert found(store, search="ash") == found(store, tags=["x"]) == made[:2:-1]
    assert found(store, search="ash", order="name") == made[5:]
    assert found(store, search="oak") == found(store, tags=["gone"]) == store.list("eve", search="x")[0] == []
    assert found(store, search="oak", kind=Kind.TRANSFORM) == [made[2]]


@pytest.mark.parametrize(
    "text", ["", "-", "top1", "metrics.", "metrics.a b", "settings.x'", "metrics.a.b.c.d.e", "x" * 999]
)
def test_orders_that_are_none(text: str) -> None:
    """Said in one line."""
    with pytest.raises(RequestError, match=r"^expected one of created, .* found .+") as caught:
        Order.of(text)
    assert len(str(caught.value)) < 300


def test_labels_that_are_none() -> None:
    """Names and tags are short lines; what is said twice is one tag."""
    assert Labels(tags=[" b", "a", "b"]).tags == ("b", "a")
    for text in ("実験\u3000１", "👨\u200d👩\u200d👧", "Essai n°\u00a01", "می\u200cخواهم", "ශ්\u200dරී", "\U0003fffd"):
        assert Labels(name=text, tags=(text,)) == Labels.model_construct(name=text, tags=(text,)), "as it was written"
    with pytest.raises(ConfigError, match=r"expected one line of text, found a control of the reading direction \("):
        Labels(tags=("a\u202eb",))
    bad = {"name": ["x" * 201, "a\nb", "\0", "\ud800"], "note": ["x" * 10_001, "\0"]}
    bad["name"] += ["a\u202eb", "a\u2067b", "a\u2028b", "\x9b"]
    bad["tags"] = [["x" * 51], [""], [" "], ["a,b"], ['a"b'], ["a\\b"], ["\x1b"], [str(n) for n in range(21)], "a"]  # type: ignore[list-item]
    for field, value in itertools.chain.from_iterable(
        zip(itertools.repeat(field), values) for field, values in bad.items()
    ):
        with pytest.raises(ConfigError):
            Labels(**{field: value})
