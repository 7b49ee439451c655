"""A list goes on where a page has ended, whatever happens to what was on it."""

import base64
import json

import pytest
from deeds import RESULT, hold, new
from sampled import ON_SQLITE

from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.columns import Cursor, Order, WrongPlace
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.naming import Labels
from tcnn_jobs.store import Store

PLACES = [
    Cursor(0), Cursor(2**63 - 1), Cursor(7, "name", "Größe"), Cursor(7, "name", None), Cursor(7, "duration", -1e-300),
    Cursor(7, "metrics.top1", 0.1 + 0.2), Cursor(7, "name", "می\u200cخواهم"), Cursor(7, "name", "東京\u3000駅"),
]  # fmt: skip


def _cancelled(store: Store) -> list[Job]:
    """Some have equal names, others none, and the requests of some have no numbers."""
    names, rates = ("b", "É", None, "b", "a", "b", None), (0.1, 0.1, None, 3, 0.1, None, -2)
    return [
        store.cancel(store.enqueue(new(name=name, request={} if rate is None else {"lr": rate})).id)
        for name, rate in zip(names, rates, strict=True)
    ]


@pytest.mark.parametrize("order", ["-created", "created", "name", "-name", "settings.lr", "-settings.lr", "-duration"])
def test_a_list_whose_pages_are_deleted_as_they_are_read(store: Store, order: str) -> None:
    jobs, by = _cancelled(store), Order.of(order)
    whole = [job.id for job in store.list(order=by)[0]]
    seen: list[str] = []
    after = None
    while len(seen) < len(jobs):
        page, after = store.list("ann", after=after, limit=2, order=by)
        seen += [store.delete(job.id).id for job in page]
    assert after is None and seen == whole
    assert store.list() == ([], None)


def test_a_place_is_where_the_job_was(store: Store) -> None:
    """Not where it went when it was called otherwise; an id is where it is."""
    jobs, by = _cancelled(store), Order.of("name")
    (first, second), following = store.list(limit=2, order=by)
    assert following is not None and [first.name, second.name] == ["a", "b"]
    rest = [job.id for job in store.list(after=following, order=by)[0]]
    assert second.id not in rest and len(rest) == len(jobs) - 2
    begun = store.begin(second.id, "ann", by)
    store.label(second.id, "ann", Labels(name="z"))
    for place in (following, begun):
        found = [job.id for job in store.list(after=place, order=by)[0]]
        assert second.id in found and [job for job in found if job != second.id] == rest
    assert second.id not in [job.id for job in store.list(after=second.id, order=by)[0]]


@ON_SQLITE
def test_a_list_that_begins_after_a_job_does_not_end_with_it(store: Store) -> None:
    first, second = (store.enqueue(new()).id for _ in range(2))
    begun = store.begin(second, "ann")
    store.delete(store.cancel(second).id)
    assert [job.id for job in store.list("ann", after=begun)[0]] == [first]
    with pytest.raises(JobNotFound):
        store.begin(second, "ann")


@ON_SQLITE
def test_uploads_that_are_deleted_as_they_are_read(store: Store) -> None:
    for number in range(5):
        store.add_upload(
            Upload(id=f"ds_{number}", owner="ann", kind="dataset", name="a", path=f"{number}", size=1, sha256="0" * 64)
        )
    seen: list[str] = []
    after = None
    while len(seen) < 5:
        page, after = store.uploads("ann", "dataset", after, limit=2)
        seen += [store.remove_upload(one.id).id for one in page]
    assert after is None and seen == [f"ds_{number}" for number in (4, 3, 2, 1, 0)]
    with pytest.raises(UploadNotFound):
        store.uploads("ann", "dataset", seen[-1])


@ON_SQLITE
def test_a_place_opens_nothing_of_others(store: Store) -> None:
    for owner in ("ann", "bob", "ann"):
        store.finish(hold(store.enqueue(new(owner=owner)) and store.claim("w1")), RESULT)
    _, place = store.list("ann", limit=1)
    assert [job.owner for job in store.list("bob", after=place)[0]] == ["bob"]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_place_comes_back_as_it_was(place: Cursor) -> None:
    text = str(place)
    assert text.isascii() and text.isprintable() and not set(text) & set("=+/& ")
    assert Cursor.of(text, place.by) == place
    with pytest.raises(WrongPlace, match=r"^after: expected an id, or `next` of a page in the same order, found next_"):
        Cursor.of(text, "finished")


@pytest.mark.parametrize(
    "told",
    [
        [], [True], [-1], [2**63], [1.0], ["1"], [1, "created", 1.0, 2], [1, "created", "x"], {"a": 1}, 7, "x", None,
        [1, ["created"]], [1, "name", 1.0], [1, "name", "\0"], [1, "name", "\ud800"], [1, "settings.lr", 10**400],
        [1, "settings.lr", float("nan")], [1, "settings.lr", float("inf")], [1, "settings.lr", "x"],
        [1, "settings.lr", True],
    ],
    ids=ascii,
)  # fmt: skip
def test_what_no_page_has_told(store: Store, told: object) -> None:
    by = str(told[1]) if isinstance(told, list) and len(told) > 1 and isinstance(told[1], str) else "created"
    code = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
    with pytest.raises(WrongPlace):
        store.list(after=f"next_{code}", order=Order.of(by))


@pytest.mark.parametrize(
    "text", ["", "x", "WzE", "W" * 100_000, "é", "\0", "\ud800", "WzE+"], ids=lambda text: ascii(text)[:20]
)
def test_what_is_no_place(store: Store, text: str) -> None:
    for look in (lambda: store.list(after=f"next_{text}"), lambda: store.uploads("ann", "dataset", f"next_{text}")):
        with pytest.raises(WrongPlace) as caught:
            look()
        assert str(caught.value).isascii() and len(str(caught.value)) < 300 and "\n" not in str(caught.value)
