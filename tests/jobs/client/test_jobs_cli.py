"""`tcnn jobs` against a real server: every command, and what can go wrong. The worker is played by the test."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_and_worker import CONTENT, Run, Worker
from houses import wait_for
from serving import Server
from tiny_runs import colours

from tcnn_jobs.client import connection
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Claim, NewEvent


def queued(run: Run, *options: object) -> str:
    """A job that waits."""
    made = run("submit", "transform", "resnet18", "--no-pretrained", *options)
    assert made.code == 0, made
    return made.out.strip()


def taken(run: Run, worker: Worker) -> Claim:
    """A job that runs."""
    job = queued(run, "--priority", 100)
    claim = worker.take()
    assert claim.job == job
    return claim


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class TestOneJob:
    def test_until_it_has_succeeded(self, run: Run, worker: Worker) -> None:
        claim = taken(run, worker)
        worker.tell(claim, NewEvent(kind="epoch", data={"epoch": 0, "train_loss": 1.25, "val": {"top1": 0.5}}))
        worker.tell(claim, phase="training", epoch=1, epochs=2, step=3, steps=4, percent=40.0)
        assert "training epoch 1/2 40%" in run("show", claim.job).out
        assert "training epoch 1/2 40%" in run("list").out
        assert "running" in run("delete", claim.job).error(2)
        worker.finish(claim)
        watched = run("watch", claim.job)
        assert watched.code == 0, watched
        assert f"tcnn jobs download {claim.job}" in watched.out
        assert "started on w, attempt 1\nepoch 1, loss 1.250, top-1 50.00%" in watched.err
        assert run("download", claim.job, "t.safetensors").out == "wrote t.safetensors (1.0 MB)\n"
        assert "exists already" in run("download", claim.job, "t.safetensors").error(2)
        assert "one of the two" in run("download", claim.job, "all.zip", "--all", "--file", "x").error(2)
        assert run("download", claim.job, "all.zip", "--all", "--json").json["bytes"] > 1_000_000
        found = run("list", "--status", "succeeded", "--kind", "transform", "--limit", 1, "--json").json
        assert [row["id"] for row in found["data"]] == [claim.job]
        assert "succeeded" in run("show", claim.job).out
        assert run("delete", claim.job).out == f"{claim.job}: deleted\n"
        assert run("show", claim.job).code == 2

    def test_a_damaged_file_is_in_no_zip(self, run: Run, worker: Worker) -> None:
        claim = taken(run, worker)
        worker.finish(claim, CONTENT[:-1] + b"!")  # of the size that was announced
        for file in ((), ("--all",)):
            said = run("download", claim.job, "out", *file).error(4 if file else 2)
            assert ("the zip broke off" if file else "SHA-256") in said
            assert not Path("out").exists()

    def test_what_its_process_has_written(self, run: Run, worker: Worker) -> None:
        job = queued(run, "--priority", 100)
        assert f"{job}: no worker has taken the job yet" in run("log", job).error(2)
        claim = worker.take()
        worker.write(claim, "log.txt", "converting: building\nconverting: done\n")
        assert run("log", job).out == "converting: building\nconverting: done\n"
        assert run("log", job, "--tail", 20, "--json").json == {"id": job, "log": "converting: done\n"}
        assert "no log of attempt 7; there are logs of 1" in run("log", job, "--attempt", 7).error(2)
        worker.finish(claim)

    def test_a_link_that_shows_it(self, run: Run) -> None:
        job = queued(run)
        made = run("share", job, "--days", 2, "--json").json
        assert made["url"].endswith(f"/#/shared/{made['secret']}")
        assert run("share", job, "--list").out.startswith(f"{made['id']} until ")
        assert run("share", job, "--revoke", made["id"]).out == f"{made['id']}: revoked\n"
        assert run("share", job, "--list").out == ""
        assert "one of the two" in run("share", job, "--list", "--revoke", made["id"]).error(2)
        for other in (["--list"], ["--revoke", made["id"]]):
            assert "applies to new links" in run("share", job, "--days", 2, *other).error(2)
        run("cancel", job)

    def test_a_name_by_which_it_is_found(self, run: Run) -> None:
        job, other = queued(run, "--stage", 3), queued(run)
        assert run("label", job, "--name", "[bold]", "--tag", "a b", "--tag", "c").out == f"{job}: [bold] #a b #c\n"
        assert run("label", job, "--note", "n", "--tag", "").out == f"{job}: [bold]\n"
        assert run("label", job, "--tag", "kept", "--json").json["note"] == "n"
        assert "expected --name, --tag or --note" in run("label", job).error(2)
        assert "no comma" in run("label", job, "--tag", "a,b").error(2)

        def found(*options: object) -> list[str]:
            return [row["id"] for row in run("list", *options, "--json").json["data"]]

        assert found("--search", "[BOLD] resnet18") == found("--tag", "kept") == [job]
        assert found("--sort", "settings.stage", "--limit", 1) == [job]
        assert other in found("--sort", "name", "--status", "queued")
        told = run("list", "--sort", "-settings.stage").out
        assert "settings.stage" in told and "[bold] #kept" in told
        assert "expected one of created" in run("list", "--sort", "colour").error(2)
        for one in (job, other):
            assert run("cancel", one).code == 0

    def test_whose_jobs_and_what_they_make(self, run: Run, worker: Worker) -> None:
        """An admin sees whose a job is, as on the dashboard; nobody else sees other tenants' jobs."""

        def found(*options: object) -> list[str]:
            return [row["id"] for row in run("list", *options, "--json").json["data"]]

        made = taken(run, worker)
        worker.finish(made)
        mine, theirs = queued(run), queued(run, "--key", "key-of-bob")
        assert made.job in found("--model", "made") and mine not in found("--model", "made")
        assert mine in found("--model", "expected") and made.job not in found("--model", "expected")
        assert "made" in run("list", "--model", "resnet18").error(2)
        assert mine in found("--tenant", "alice") and theirs not in found() and "bob" not in run("list").out
        assert "admin" in run("list", "--tenant", "bob").error(2)
        _, admin = worker.store.create_key(NewKey(tenant="alice", scopes=frozenset({Scope.READ, Scope.ADMIN})))
        assert found("--tenant", "bob", "--key", admin) == [theirs]
        assert {"tenant", "alice", "bob"} <= set(run("list", "--key", admin).out.split())
        assert "tenant" not in run("list", "--tenant", "bob", "--key", admin).out.split()
        for job, key in ((mine, "key-of-alice"), (theirs, "key-of-bob")):
            assert run("cancel", job, "--key", key).code == 0

    def test_a_failed_job_ends_as_a_local_run_would(self, run: Run, worker: Worker) -> None:
        claim = taken(run, worker)
        worker.fail(claim, "diverged", "the loss is\nno longer finite")
        watched = run("watch", claim.job)
        assert (watched.code, watched.out) == (5, "")
        assert watched.err.endswith(f"error: {claim.job}: the loss is no longer finite\n")
        watched = run("watch", claim.job, "--json")
        assert (watched.code, watched.json["error"]["code"], watched.err) == (5, "diverged", "")
        assert "diverged: the loss is" in run("show", claim.job).out

    def test_cancel_and_resume(self, run: Run, worker: Worker) -> None:
        claim = taken(run, worker)
        assert run("cancel", claim.job).out == f"{claim.job}: cancelling\n"
        worker.store.cancelled(claim)
        watched = run("watch", claim.job)
        assert watched.code == 75
        assert f"tcnn jobs resume {claim.job}" in watched.err
        assert run("resume", claim.job).out == f"{claim.job}: queued\n"
        assert run("cancel", claim.job, "--json").json["status"] == "cancelled"
        assert run("delete", claim.job, "--json").json == {"id": claim.job, "deleted": True}

    def test_ctrl_c_leaves_the_job_alone(self, run: Run, server: Server) -> None:
        job = queued(run)
        process = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "jobs", "watch", job],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
            preexec_fn=_hears_ctrl_c,  # noqa: PLW1509 - a shell's background jobs are born deaf to it
        )  # fmt: skip
        wait_for(lambda: _connections(server))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (130, "")
        assert f"tcnn jobs cancel {job}" in err
        assert run("show", job, "--json").json["status"] == "queued"
        run("cancel", job)

    def test_the_same_key_is_the_same_job(self, run: Run, tmp_path: Path) -> None:
        folder = colours(tmp_path / "colours", images=2)
        submit = (
            "submit",
            "finetune",
            "resnet18",
            "--no-pretrained",
            "--data",
            folder,
            "--set",
            "val_split=0.5",
            "--set",
            "batch_size=2",
        )
        first, second = (run(*submit, "--idempotency-key", "once") for _ in range(2))
        assert first.code == 0, first
        assert first.out == second.out
        assert run("cancel", first.out.strip()).code == 0

    def test_options_become_the_request(self, run: Run) -> None:
        options = ("--stride", "remove", "--temperature", "1", "--head-dim", 8, "--num-classes", 3, "--priority", -5)
        options += ("--content", "window:14", "--max-runtime", 600, "--stall-minutes", 5)
        first = run("submit", "transform", "resnet18", "--no-pretrained").out.strip()
        options += ("--depends-on", first)
        job = run("submit", "transform", "resnet18", "--no-pretrained", *options, "--max-attempts", 1, "--json").json
        expected = {"stride": "remove", "temperature": 1.0, "head_dim": 8, "num_classes": 3, "pretrained": False}
        assert job["request"].items() >= {**expected, "content": "window:14"}.items()
        assert (job["priority"], job["max_attempts"]) == (-5, 1)
        assert (job["max_runtime"], job["stall_minutes"]) == (600, 5)
        assert (job["request"]["depends_on"], job["waiting_for"]) == ([first], f"waits for {first}")
        assert run("cancel", first).code == 0
        assert run("show", job["id"], "--json").json["error"]["code"] == "source_failed"


def _connections(server: Server) -> bool:
    """Whether somebody is connected to the server."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(port) and line.split()[3] == "01" for line in lines)


class TestErrors:
    def test_nobody_there(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "FIRST_PATIENCE", 0.3)
        assert "cannot be reached" in run("list", "--server", "http://127.0.0.1:9").error(4)

    def test_a_wrong_key(self, run: Run) -> None:
        assert "TCNN_API_KEY" in run("list", "--key", "wrong").error(2)
        assert "visible ASCII" in run("list", "--key", "schlüssel").error(2)

    @pytest.mark.parametrize("command", ["show", "watch", "cancel", "resume", "delete"])
    def test_an_unknown_id(self, run: Run, command: str) -> None:
        assert "job" in run(command, "job_000000000000000000000000").error(2)
        assert "not a job's id" in run(command, "../datasets").error(2)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["transform", "resnet51"], "no timm model of this name"),
            (["transform", "resnet18", "--stride", "half"], "stride"),
            (["transform", "resnet18", "--set", "epochs=3"], "--data"),
            (["transform", "resnet18", "--field", "seed"], "KEY=VALUE"),
            (["transform", "resnet18", "--field", "stride=keep"], "leave one of the two out"),
            (["transform", "resnet18", "--field", "sede=3"], "seed"),
            (
                ["transform", "resnet18", "--preset", "quick"],
                "--preset, --set, --baseline and --nproc are for fine-tuning",
            ),
            (["transform", "resnet18", "--data", "ds_000000000000000000000000"], "data set"),
            (["finetune", "resnet18", "--data", "nowhere/"], "nowhere"),
            (["finetune", "missing.safetensors", "--data", "x"], "found nothing"),
            (["evaluate", "resnet18", "--data", "x", "--set", "sizes"], "KEY=VALUE"),
            (["finetune", "resnet18", "--data", "x", "--set", "a=1", "--set", "a.b=2"], "has a value already"),
            (
                ["evaluate", "resnet18", "--data", "x", "--set", "limit=1", "--set", "limit=2"],
                "--set limit=2: limit has",
            ),
            (["transform", "resnet18", "--field", "a=1", "--field", "a=2"], "--field a=2: a has a value already, 1;"),
            (["finetune", "resnet18", "--data", "x", "--set", "epoch=1"], "epochs"),
            (["transform", "resnet18", "--webhook", "http://evil.example"], "webhook"),
            (
                ["finetune", "resnet18", "--data", "x", "--set", "conversion.temperature=NaN"],
                "config.conversion.temperature",
            ),
            (["finetune", "resnet18", "--data", "x", "--stall-minutes", "inf"], "stall_minutes: expected a finite"),
            (["finetune", "resnet18", "--data", "x", "--weights", "."], "expected a file, found a folder"),
            (["finetune", "resnet18", "--data", "x", "--weights", f"job_{'0' * 24}"], "no weights"),
            (["finetune", f"wts_{'0' * 24}", "--data", "x"], "`weights`"),
            (["transform", f"job_{'0' * 24}"], "`tcnn jobs submit finetune` takes it as `job`"),
        ],
    )
    def test_what_is_refused(self, run: Run, arguments: list[str], words: str) -> None:
        assert words in run("submit", *arguments).error(2)
        refused = run("submit", *arguments, "--json")
        assert (refused.code, refused.err) == (2, "")
        assert words in refused.json["error"]["message"]
