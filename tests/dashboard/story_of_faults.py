"""A home with what a stranger found wrong or misleading, made the way workers make it; no process runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browsing import HOSTILE
from story import SET, VERIFICATION, Story

from tcnn_jobs.attempt import Assignment, public
from tcnn_jobs.model.jobs import Artifact, Claim, Failure, Kind, Result, Upload

LONG = "hf-hub:an-organisation/a_model_with_a_name_" + "x" * 180


class Faults(Story):
    """The story, and what went wrong around it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.evaluated = self._evaluate()
        self.compared = self._compare()
        self.steady = self._steady()
        self.long = self._taken(priority=100, request={"model": LONG}, max_attempts=1)
        self.house.store.fail(self.long, Failure(code="diverged", message="y" * 200))
        asked = {"dataset": SET, "preset": "quick", "config": {"epochs": 3, "mixup": 0.0, "conversion": {"seed": 4}}}
        self.edited = self._taken(
            priority=100, request={"model": "resnet34", "head_dim": 16, "finetune": asked}, max_attempts=1
        )
        self.house.store.fail(self.edited, Failure(code="diverged", message="the loss is no longer finite"))
        told = Assignment(job="job_1", claim=1, kind=Kind.TRANSFORM, request={}, paths={})
        said = public("the worker was stopped after epoch 2 (update 9); go on with --resume --out run", told)
        self.advised = self._taken(priority=100, request={"model": "resnet50"}, max_attempts=1)
        self.house.store.fail(self.advised, Failure(code="oom", message=said))
        self.retried = self._taken(priority=100, request={"model": "resnet26"})
        self.house.store.fail(self.retried, Failure(code="crashed", message="killed"), retry_after=900)
        self.waits = self.house.submit(kind=Kind.FINETUNE, request={"job": self.queued.id, "dataset": SET})

    def _evaluate(self) -> Claim:
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request={"job": self.succeeded.job, "dataset": SET})
        clean: dict[str, Any] = {"images": 6, "right": 4, "top1": 2 / 3, "top5": None, "loss": 1.09, "per_class": {}}
        row = {"model": self.succeeded.job, "height": 32, "width": 32, "clean": clean, "corruption_top1": None}
        metrics = {"data": SET, "split": "val", "images": 6, "held_out": False, "trained_on": [row["model"]],
                   "rows": [row]}  # fmt: skip
        self._finish(claim, metrics=metrics)
        return claim

    def _compare(self) -> Claim:
        """At two sizes, under two corruptions, class by class."""
        severe = {str(level): {"top1": 0.9 - 0.1 * level} for level in (1, 3, 5)}
        corruptions = {name: {"top1": 0.6, "severities": severe} for name in ("fog", "gaussian_noise")}
        classes = {
            name: {"images": 10, "right": right, "top1": right / 10} for name, right in (("cat", 9), (HOSTILE, 4))
        }
        pairs = [{"target": HOSTILE, "answer": "cat", "images": 6}, {"target": "cat", "answer": HOSTILE, "images": 1}]
        rows = [
            {"model": self.succeeded.job, "height": size, "width": size, "corruption_top1": 0.6, "mce": None,
             "corruptions": corruptions if size == 64 else {},
             "clean": {"images": 20, "right": 13, "top1": size / 100, "top5": None, "loss": 1.0, "per_class": classes,
                       "confusions": pairs}}
            for size in (32, 64)
        ]  # fmt: skip
        claim = self._taken(priority=100, kind=Kind.EVALUATE, request={"job": self.succeeded.job, "dataset": SET})
        self._finish(claim, metrics={"data": SET, "split": "val", "images": 20, "held_out": True, "rows": rows})
        return claim

    def _steady(self) -> Claim:
        """Spans that move in their sixth digit, after 5,000 steps."""
        claim = self._taken(priority=100, kind=Kind.FINETUNE, request={"checkpoint": "ckpt_0", "dataset": SET})
        rows = [
            {"kind": "epoch", "epoch": at, "updates": 37 + 1241 * at, "train_loss": 1.0, "val": {"top1": 0.5},
             "span_mean": {"layer4.0.conv2": 0.999997 + 1e-6 * at}}
            for at in range(5)
        ]  # fmt: skip
        metrics = self.house.home.attempt(claim.job, claim.number) / "run" / "metrics.jsonl"
        metrics.parent.mkdir(parents=True)
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        path = f"{claim.job}/{claim.number}/run/best.safetensors"
        model = Artifact(name="best.safetensors", path=path, size=9, sha256="0" * 64)
        self._finish(claim, checkpoint=model, verification=VERIFICATION | {"images": "images 8×3×224×224"})
        return claim

    @contextmanager
    def with_a_data_set(self) -> Iterator[Upload]:
        """A data set's row, for one test: the others have none."""
        details = {"classes": ["cat", "dog"], "images": 60, "splits": {}}
        data = Upload(id="ds_" + "1" * 24, owner="local", kind="dataset", name="pets.zip", path="x", size=1,
                      sha256="0" * 64, details=details)  # fmt: skip
        yield self.house.store.add_upload(data)
        self.house.store.remove_upload(data.id)

    def _finish(self, claim: Claim, **result: Any) -> None:
        file = Artifact(name="a.json", path=f"{claim.job}/{claim.number}/a.json", size=2, sha256="0" * 64)
        self.house.store.finish(claim, Result(files=(file,), **result))
