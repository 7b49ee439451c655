"""`tcnn jobs` against `tcnn serve` with a real worker and real training."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_line import Run
from serving import Server, serving
from tiny_runs import colours

import tcnn

TINY = {
    "epochs": 2, "warmup_epochs": 1, "anneal_epochs": "null", "batch_size": 8, "size": 32, "workers": 0,
    "val_split": 0.2, "device": "cpu",
}  # fmt: skip
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {
        "TCNN_API_KEYS": "alice:key-of-alice", "TCNN_POLL": "0.1", "TCNN_RETRY_DELAY": "0", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    with serving(tmp_path_factory.mktemp("service") / "home", **environment) as running:
        yield running


@pytest.mark.slow  # the pages of the documentation and of the dashboard make this journey, too
def test_the_whole_journey(run: Run, tmp_path: Path) -> None:
    """Convert and fine-tune on a local folder, watch it, download it, evaluate it, fine-tune it further."""
    folder = colours(tmp_path / "colours")
    submit = ("submit", "transform", "test_resnet", "--no-pretrained", "--data", folder, "--preset", "quick", *SETTINGS)
    watched = run(*submit, "--watch")
    assert watched.code == 0, watched
    job = watched.out.split(":")[0]
    assert job.startswith("job_")
    assert "verified: equal" in watched.out
    assert "top-1" in watched.out
    for words in ("started on", "converted", "epoch 1, loss", "epoch 2, loss"):
        assert words in watched.err, watched.err
    done = run("download", job, "t.safetensors")
    assert done.code == 0, done
    assert tcnn.load(tmp_path / "t.safetensors").num_classes == 3
    assert "exists already" in run("download", job, "t.safetensors").error(2)
    assert run("download", job, "s.csv", "--file", "summary.csv", "--json").json["output"] == "s.csv"
    assert (tmp_path / "s.csv").read_text().startswith("epoch")

    data = run("upload", folder, "--json").json
    assert data["images"] == 30
    measured = run("submit", "evaluate", "t.safetensors", "--data", data["id"], "--against", job, "--watch", "--json")
    assert measured.code == 0, measured
    rows = measured.json["result"]["metrics"]["rows"]
    assert [row["model"] for row in rows][1:] == [job]
    assert rows[0]["clean"]["top1"] == rows[1]["clean"]["top1"]
