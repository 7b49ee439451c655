"""A home with a job in every state, made the way their owners and workers make them; no process runs."""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy
from browsing import HOSTILE
from houses import House
from PIL import Image

from tcnn.evaluation.comparing.before_after import BeforeAfter, Cost, Measured, Rate, Row, counted, differences
from tcnn.evaluation.outcomes import Outcomes
from tcnn_jobs.model.jobs import Artifact, Beat, Claim, Failure, Kind, Progress, Result
from tcnn_jobs.model.operation import WorkerInfo

CLASSES = {HOSTILE.replace("/", ""): (6, 2), "cat": (12, 3)}
"""A class, and its images for training and validation."""
SET = "ds_" + "0" * 24
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
VERIFICATION: dict[str, Any] = {
    "passed": True, "temperature": 0.0217, "images": "noise 2×3×224×224",
    "passes": [{
        "dtype": "float32", "tolerance": 1e-5, "top1_agreement": 1.0, "passed": True,
        "logits": {"relative": 2e-7, "max_relative": 3e-7},
        "layers": [{"name": "layer4.0.conv2", "random": {"relative": 1e-7, "max_relative": 2e-7}}],
    }],
    "drift": {"temperature": 1.0, "logits": {"relative": 0.79}, "top1_agreement": 0.1},
}  # fmt: skip


def before_and_after(
    names: tuple[str, ...] = (HOSTILE, "cat", "dog"), guesses: bool = True, rate: tuple[float, float] = (790, 821)
) -> BeforeAfter:
    """Four models on 200 images of these classes, one of which has a hostile name; the first one only guesses."""
    random = numpy.random.default_rng(0)
    targets = random.integers(0, len(names), 200)
    hard = random.random(200)
    rows = []
    for role, skill in (("cnn", 0.33), ("tuned_cnn", 0.7), ("converted", 0.33), ("t_cnn", 0.85)):
        given = numpy.where(hard < skill, targets, (targets + 1) % len(names))
        found = Outcomes(numpy.arange(200), targets, given, numpy.linspace(0.4, 0.99, 200))
        accuracy, classes = counted(found, names)
        cost = Cost(
            parameters=11_000_000, bytes=44_000_000, flops=3_600_000_000,
            images_per_second=Rate(median=rate[1], low=rate[0], high=rate[1]),
        )  # fmt: skip
        harder = found._replace(predicted=numpy.where(hard < skill - 0.2, targets, (targets + 1) % len(names)))
        row = Row(role=role, accuracy=accuracy, corrupted=counted(harder, names)[0], per_class=classes, cost=cost,  # type: ignore[arg-type]
                  new_classifier=guesses and skill < 0.5)  # fmt: skip
        rows.append(Measured(row, found, harder))
    gains = differences(rows, names, [f"{HOSTILE}/{number}.png" for number in range(200)])
    for image in gains[0].right_images:
        image.thumbnail = PIXEL
    return BeforeAfter(images=200, rows=[one.row for one in rows], corrupted_images=200, differences=gains)


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
        self.running = self._taken(kind=Kind.FINETUNE, request={"model": "resnet18", "dataset": SET})
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

    def _succeed(
        self, compared: BeforeAfter | None = None, verification: dict[str, Any] = VERIFICATION, **options: Any
    ) -> Claim:
        claim = self._taken(
            model="test_resnet",
            **{"request": {"model": "test_resnet", "finetune": {"dataset": SET}}, **options},
        )
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
        compared = compared or before_and_after()
        text = compared.model_dump_json().encode()
        (run / "before-after.json").write_bytes(text)
        told = Artifact(
            name="before-after.json", path=f"{claim.job}/{claim.number}/run/before-after.json", size=len(text),
            sha256=hashlib.sha256(text).hexdigest(),
        )  # fmt: skip
        result = Result(
            checkpoint=file, files=(file, told), verification=verification,
            notes=("classifier replaced: 1000 → 3 classes",),
            metrics={"top1": 0.8, "best_top1": 0.8, "best_epoch": 3, "epochs": 4, "train_images": 24, "val_images": 200,
                     "before_after": compared.headline().model_dump(mode="json")},
        )  # fmt: skip
        self.house.store.finish(claim, result)
        return claim


def pictures(broken: bool = True) -> bytes:
    """A divided data set of noise, of uneven classes; one file is no image, and one is cut off."""
    random = numpy.random.default_rng(0)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, counts in CLASSES.items():
            for split, count in zip(("train", "val"), counts, strict=True):
                for number in range(count):
                    image = io.BytesIO()
                    shape = (40 + number, 30, 3)
                    Image.fromarray(random.integers(0, 255, shape, numpy.uint8)).save(image, "JPEG")
                    packed.writestr(f"{split}/{name}/{number}.jpg", image.getvalue())
        if broken:
            packed.writestr("train/cat/100.jpg", image.getvalue()[:-300])
            packed.writestr("train/cat/101.png", b"nothing")
    return out.getvalue()
