"""A house of its own for every test, and nobody left in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from houses import House, RealWorkers


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "home")
    yield house
    for worker in house.workers:
        for attempt in worker._running:
            attempt.process.kill()
    house.store.close()


@pytest.fixture
def workers(house: House) -> Iterator[RealWorkers]:
    workers = RealWorkers(house.settings.root)
    yield workers
    workers.end()
