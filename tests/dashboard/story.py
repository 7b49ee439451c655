"""A home with a job in every state, made the way their owners and workers make them; no process runs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from browsing import HOSTILE
from houses import House

from tcnn_jobs.model import Artifact, Beat, Claim, Failure, Kind, Progress, Result, WorkerInfo

VERIFICATION: dict[str, Any] = {
    "passed": True, "temperature": 0.0217, "images": "noise 2×3×224×224",
    "passes": [{
        "dtype": "float32", "tolerance": 1e-5, "top1_agreement": 1.0, "passed": True,
        "logits": {"relative": 2e-7, "max_relative": 3e-7},
        "layers": [{"name": "layer4.0.conv2", "random": {"relative": 1e-7, "max_relative": 2e-7}}],
    }],
    "drift": {"temperature": 1.0, "logits": {"relative": 0.79}, "top1_agreement": 0.1},
}  # fmt: skip


class Story:
    """A home with a job in every state, made the way workers make them."""

    def __init__(self, root: Path) -> None:
        self.house = House(root)
        self.succeeded = self._succeed()
        self.failed = self._taken(model="resnet50d.ra2_in1k")
        message = f"diverged: the loss of {HOSTILE} is no longer finite, for a reason that takes a long line to tell"
        self.house.store.fail(self.failed, Failure(code="diverged", message=message))
        self.cancelled = self.house.submit(request={"model": "convnext_tiny"})
        self.house.store.cancel(self.cancelled.id)
        self.running = self._taken(kind=Kind.FINETUNE, request={"model": "resnet18", "dataset": "ds_" + "0" * 24})
        self.queued = self.house.submit(request={"model": HOSTILE})
        self.tell(12.5)

    def tell(self, percent: float) -> None:
        """As the running job's worker does."""
        now = Progress(phase="training", epoch=2, epochs=10, percent=percent, eta_seconds=75, loss=1.42, lr=5e-4)
        info = WorkerInfo(name=self.running.worker, host="here", slots=1, version="1")
        self.house.store.heartbeat(info, [Beat(claim=self.running, progress=now)])

    def _taken(self, model: str = "resnet18", **options: Any) -> Claim:
        job = self.house.submit(**{"request": {"model": model}, **options})
        taken = self.house.store.claim(f"worker-{job.number}")
        assert taken is not None and taken.id == job.id
        return Claim(job=job.id, worker=f"worker-{job.number}", number=taken.claim)

    def _succeed(self) -> Claim:
        claim = self._taken(model="test_resnet", request={"model": "test_resnet", "finetune": {"dataset": "pets"}})
        run = self.house.home.attempt(claim.job, claim.number) / "run"
        run.mkdir(parents=True)
        layers = {f"layer4.{number}.conv{one}": 0.9 - 0.1 * number for number in (0, 1) for one in (1, 2)}
        rows = [{"kind": "train", "updates": at, "loss": 2 / at, "temperature": at / 40} for at in range(1, 40)]
        rows += [
            {"kind": "epoch", "epoch": at, "updates": 10 * at + 10, "train_loss": 2 / (at + 1), "lr": 1e-4,
             "temperature": 1.0, "val": {"loss": 1.5 / (at + 1), "top1": 0.5 + 0.1 * at, "top5": None},
             "gate_mean": layers, "span_mean": layers}
            for at in range(4)
        ]  # fmt: skip
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.parent / "log.txt").write_text("converting\ndone\n")
        (run / "best.safetensors").write_bytes(b"0" * 1000)
        file = Artifact(
            name="best.safetensors", path=f"{claim.job}/{claim.number}/run/best.safetensors", size=1000,
            sha256=hashlib.sha256(b"0" * 1000).hexdigest(),
        )  # fmt: skip
        result = Result(
            checkpoint=file, files=(file,), verification=VERIFICATION, notes=("classifier replaced: 1000 → 3 classes",),
            metrics={"top1": 0.8, "epochs": 4, "train_images": 24, "val_images": 6},
        )  # fmt: skip
        self.house.store.finish(claim, result)
        return claim
