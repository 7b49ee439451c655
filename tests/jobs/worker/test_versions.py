"""Workers of unlike versions do not share a queue."""

from importlib.metadata import version

import pytest
from houses import House, RealWorkers, wait_for

from tcnn.errors import EnvironmentFailure
from tcnn.version import __version__
from tcnn_jobs.model import WorkerInfo
from tcnn_jobs.worker.service import work
from tcnn_jobs.worker.versions import check_fellows, own


def test_another_version_is_refused_with_both(house: House) -> None:
    house.store.heartbeat(WorkerInfo(name="old", host="there", slots=1, version="tcnn 0.0.9, torch 2.1.0"), [])
    with pytest.raises(EnvironmentFailure) as caught:
        work(house.settings, until_empty=True)
    message = str(caught.value)
    assert f"tcnn {__version__}, torch {version('torch').partition('+')[0]}, but" in message
    assert "workers with tcnn 0.0.9, torch 2.1.0 are at this queue" in message
    assert "\n" not in message
    house.store.forget_worker("old")
    check_fellows(house.store)


def test_a_worker_says_what_it_has(house: House, workers: RealWorkers) -> None:
    workers.start()
    wait_for(house.store.versions)
    assert house.store.versions() == {own()}
    check_fellows(house.store)
