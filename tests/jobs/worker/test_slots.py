"""Slots, and the GPU that goes with each."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from houses import House

from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.worker.slots import gpu_memory, slots_for, visible_gpus
from tcnn_jobs.worker.worker import Worker

ONE = (
    "python3",
    "-S",
    "-c",
    "import os, sys; open(sys.argv[1] + '/gpu', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])",
)


def test_without_a_gpu_there_is_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert slots_for(None) == [None]
    assert slots_for(3) == [None, None, None]


def test_every_gpu_that_may_be_used_is_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-8f3a")
    assert slots_for(None) == ["2", "GPU-8f3a"]
    assert slots_for(3) == ["2", "GPU-8f3a", "2"]
    assert slots_for(1) == ["2"]


@pytest.mark.parametrize(("said", "seen"), [("-1", []), ("0,-1,1", ["0"]), ("", []), ("1, 0", ["1", "0"])])
def test_minus_one_hides_what_is_behind_it(said: str, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert visible_gpus() == seen


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver here")
def test_a_host_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_memory() == ()
    assert visible_gpus() == []


def test_a_gpu_without_a_figure_is_a_gpu_and_a_lost_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's answers are played; on a GPU `tests/gpu` asks the real one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answer(name: str, answers: list[Any]) -> None:
        def ask(index: int) -> Any:
            if isinstance(answers[index], pynvml.NVMLError):
                raise answers[index]
            return answers[index]

        monkeypatch.setattr(pynvml, name, ask)

    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    lost, unsupported = (
        pynvml.NVMLError(code) for code in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED)
    )
    answer("nvmlDeviceGetHandleByIndex", [0, lost, 2, 3])
    answer("nvmlDeviceGetName", ["GB10", lost, "H200", unsupported])
    answer("nvmlDeviceGetMemoryInfo", [unsupported, lost, SimpleNamespace(used=3, total=100), unsupported])
    assert visible_gpus() == ["0", "2", "3"]
    assert gpu_memory() == (
        {"index": 0, "name": "GB10"},
        {"index": 2, "name": "H200", "memory_used": 3, "memory_total": 100},
        {"index": 3, "name": "unknown"},
    )


def test_jobs_at_once_have_a_gpu_each(house: House) -> None:
    jobs = [house.submit() for _ in range(2)]
    worker = Worker(
        house.store, house.home, LocalEngine(ONE), house.settings, name="w", host="here", slots=["0", "1"]
    )  # fmt: skip
    worker.step()
    places = [house.home.attempt(job.id, 1) / "gpu" for job in jobs]
    house.step_until(worker, lambda: all(place.exists() and place.read_text() for place in places))
    assert sorted(place.read_text() for place in places) == ["0", "1"]
    worker.drain()
    worker.run()
