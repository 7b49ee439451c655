"""What a job's process is told of the service's environment, and what it can find out."""

import subprocess
import sys

import pytest
from houses import House

from tcnn_jobs.engines.environment import environment
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.worker.service import engine_for

SECRET = (
    "TCNN_DATABASE_URL", "TCNN_API_KEYS", "TCNN_WEBHOOK_SECRET", "TCNN_API_KEY", "PGPASSWORD", "POSTGRES_PASSWORD",
    "HF_TOKEN", "HF_HUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN",
    "WANDB_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "RAY_AUTH_TOKEN", "SOMETHING_NEW",
)  # fmt: skip
NEEDED = (
    "PATH", "HOME", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "HF_HOME", "HF_HUB_OFFLINE", "https_proxy",
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_CACHE_DIR",
    "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "TCNN_ATTENTION", "XDG_CACHE_HOME", "SSL_CERT_FILE",
)  # fmt: skip


def test_only_what_is_named_is_passed_on() -> None:
    given = dict.fromkeys((*SECRET, *NEEDED), "x")
    assert set(environment(given=given)) == set(NEEDED)
    assert set(environment(["HF_TOKEN", "AWS_*"], given)) - set(NEEDED) == {
        "HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    }  # fmt: skip


def test_a_job_has_nobodys_secrets_but_those_it_was_given(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET:
        monkeypatch.setenv(name, f"hush-{name}.")
    monkeypatch.setenv("TCNN_JOB_ENVIRONMENT", "HF_TOKEN, WANDB_*")
    monkeypatch.delenv("TCNN_DATABASE_URL")
    engine = engine_for(QueueSettings())
    assert isinstance(engine, LocalEngine)
    job = house.submit()
    worker = house.worker("event('environment', text=repr(dict(os.environ))); succeed()")
    assert isinstance(worker.engine, LocalEngine)
    worker.engine._passed = engine._passed
    worker.run(until_empty=True)
    text = next(event.data["text"] for event in house.store.events(job.id) if event.kind == "environment")
    assert {name for name in SECRET if f"hush-{name}." in text} == {"HF_TOKEN", "WANDB_API_KEY"}


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: /proc is Linux's")
def test_a_service_can_close_its_own_proc_entry() -> None:
    """PR_GET_DUMPABLE is 3; what is not dumpable has a /proc entry that is root's, and cannot be traced."""
    script = (
        "import ctypes; from tcnn.processes import keep_to_oneself; ask = lambda: ctypes.CDLL(None).prctl(3); "
        "before = ask(); keep_to_oneself(); print(before, ask())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "1 0\n"
