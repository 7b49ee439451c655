"""Webhook calls of several tenants: whose receiver hangs delays its own calls, and nobody else's."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from deeds import new
from houses import House, wait_for
from receiving import Receiver
from sampled import ON_SQLITE

from tcnn_jobs.housekeeping import webhooks
from tcnn_jobs.housekeeping.webhooks import deliver_due
from tcnn_jobs.store import Store


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of one that accepts calls and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def _ended(store: Store, owner: str, url: str, number: int = 1) -> None:
    for _ in range(number):
        store.cancel(store.enqueue(new(owner=owner, webhook=url)).id)


def _due(store: Store) -> int:
    with store.reading() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM deliveries WHERE attempt = 0").scalar() or 0)


@ON_SQLITE
def test_tenants_take_turns(store: Store) -> None:
    """However many calls one has that were due before; and whoever has calls under way has had its turn."""
    for owner, number in (("red", 9), ("blue", 3), ("green", 1)):
        _ended(store, owner, "http://receiver.example/", number)

    def taken(limit: int, each: int, **under_way: int) -> Counter[str]:
        return Counter(call.tenant for call in store.due_deliveries(limit, each=each, under_way=under_way))

    assert taken(3, 4, red=1, blue=1) == {"green": 1, "red": 1, "blue": 1}
    assert taken(10, 4, red=2, blue=4) == {"red": 2}
    assert taken(10, 4, red=4, blue=4) == {}
    assert taken(10, 4) == {"red": 4, "blue": 2}
    assert taken(10, 4) == {"red": 2}


@ON_SQLITE
def test_a_tenants_turn_comes_behind_more_calls_than_are_sorted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcnn_jobs.store.changes._HEAD", 5)
    _ended(store, "red", "http://receiver.example/", 8)
    _ended(store, "blue", "http://receiver.example/")
    assert {call.tenant for call in store.due_deliveries(10, each=2)} == {"red"}
    (call,) = store.due_deliveries(8, each=2, under_way={"red": 2})
    assert call.tenant == "blue"


def test_a_tenant_whose_receiver_hangs_delays_no_others_call(
    house: House, receiver: Receiver, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "AT_ONCE", 4)
    monkeypatch.setattr(webhooks, "EACH", 2)
    monkeypatch.setattr(webhooks, "TIMEOUT", 1.0)
    monkeypatch.setattr(webhooks, "LOOK", 0.02)
    over = threading.Event()
    _ended(house.store, "red", silent, 12)
    _ended(house.store, "blue", receiver.url, 3)
    delivering = threading.Thread(target=deliver_due, args=(house.store, None, lambda: not over.is_set()), daemon=True)
    delivering.start()
    wait_for(lambda: len(receiver.times) == 3)
    assert _due(house.store) >= 8, "calls of red still wait for those that hang"
    _ended(house.store, "blue", receiver.url)
    wait_for(lambda: len(receiver.times) == 4)
    assert _due(house.store) >= 6, "and so does nothing that becomes due meanwhile"
    over.set()
    delivering.join(30)
    assert not delivering.is_alive() and _due(house.store) >= 4, "it ends with the calls that were under way"


def test_calls_follow_those_that_have_ended_and_wait_for_no_other(
    house: House, receiver: Receiver, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one tenant, of whose receivers one hangs."""
    monkeypatch.setattr(webhooks, "EACH", 2)
    monkeypatch.setattr(webhooks, "TIMEOUT", 2.0)
    monkeypatch.setattr(webhooks, "LOOK", 0.02)
    _ended(house.store, "ann", silent)
    _ended(house.store, "ann", receiver.url, 5)
    began = time.monotonic()
    assert deliver_due(house.store, None) == 6
    assert len(receiver.times) == 5 and max(receiver.times) - began < 2.0
