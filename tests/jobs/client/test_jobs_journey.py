"""`tcnn jobs` against `tcnn serve` with a real worker and real training; and how its commands end: exit codes, and
what is told of a result.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_and_worker import Run
from serving import Server, serving
from tiny_runs import colours

import tcnn
from tcnn_jobs.cli.watch import result_lines

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


@pytest.mark.slow  # `tests/api/test_api_openapi.py` looks at these modules and at the app in one process
def test_torch_is_never_loaded() -> None:
    script = (
        "import sys\nimport tcnn_jobs.cli.jobs, tcnn_jobs.cli.submit, tcnn_jobs.cli.watch, tcnn_jobs.client.client\n"
        "tcnn_jobs.cli.watch.exit_code({'status': 'failed', 'error': {'code': 'diverged'}})\n"
        "print([name for name in ('torch', 'timm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("succeeded", None, 0), ("cancelled", None, 75), ("failed", "unknown_model", 2), ("failed", "verification", 3),
        ("failed", "diverged", 5), ("failed", "download", 4), ("failed", "storage", 4), ("failed", "environment", 4),
        ("failed", "worker_lost", 4), ("failed", "crashed", 4), ("failed", "internal", 1),
    ],
)  # fmt: skip
def test_exit_codes(status: str, error: str | None, code: int) -> None:
    from tcnn_jobs.cli.watch import exit_code

    assert exit_code({"status": status, "error": error and {"code": error, "message": ""}}) == code


def test_every_failure_that_is_written_down_has_an_exit_code_and_a_line_in_the_docs() -> None:
    from tcnn_jobs.cli.watch import exit_code

    root = Path(__file__).parents[3]
    sources = "".join(path.read_text(encoding="utf-8") for path in (root / "tcnn_jobs").rglob("*.py"))
    codes = set(re.findall(r'\bcode"?[=:] ?"([a-z_]+)"', sources))
    assert {"quarantined", "out_of_memory", "internal"} <= codes
    bugs = {code for code in codes if exit_code({"status": "failed", "error": {"code": code}}) == 1}
    assert bugs == {"internal"}
    documented = (root / "docs/http-api.md").read_text(encoding="utf-8")
    assert [code for code in codes - {"environment"} if f"`{code}`" not in documented] == []


def test_a_result_tells_the_accuracy_of_the_epoch_that_was_kept() -> None:
    metrics = {"top1": 0.25, "best_top1": 0.5, "best_epoch": 1, "epochs": 3}
    said = result_lines({"id": "job_1", "result": {"metrics": metrics}})
    assert said == ["job_1: succeeded", "top-1 50.00%, of epoch 2 of 3"]
