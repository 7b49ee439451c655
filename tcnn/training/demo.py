"""The demo's journey on real images: train a CNN, convert it, prove it equal, write, reload elsewhere, fine-tune."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from tcnn.conversion.checkpoint import load, save
from tcnn.conversion.surgery import convert
from tcnn.conversion.verify import verify
from tcnn.errors import VerificationError
from tcnn.training import digits

Progress = Callable[[str], None]


class Row(BaseModel):
    """One line of the demo's table."""

    model: str
    top1: float
    parameters: int
    equivalence_error: float | None = None
    drift_at_1: float | None = None


class DemoResult(BaseModel):
    """What `tcnn demo --json` prints."""

    images: str
    rows: list[Row]
    predictions_unchanged: bool
    held_out: int
    checkpoint: str | None
    seconds: float


def run(directory: Path, keep: bool, epochs: int, finetune_epochs: int, seed: int, progress: Progress) -> DemoResult:
    """The journey; raises `VerificationError` if a single prediction changes."""
    started = time.monotonic()
    progress("loading the digits")
    data = digits.load_digits(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # At an output stride of 16 the last stage works on 4×4 maps.
        source = timm.create_model("test_resnet", num_classes=10, in_chans=1, output_stride=16)
    report_epoch = _epochs(progress, "training the CNN", epochs)
    digits.fit(source, data.train, data.train_labels, epochs, 2e-3, seed, progress=report_epoch)
    before = digits.predictions(source, data.test)

    progress("converting")
    model, report = convert(source, seed=seed)
    progress("verifying")
    verdict = verify(source, model, images=data.test[:64])
    failure = verdict.failure()
    if failure:
        raise VerificationError(failure)
    checkpoint = save(model, directory / "t_resnet-digits.safetensors", verdict, force=True)
    progress("reloading in a fresh process")
    after = _predict_elsewhere(checkpoint, directory, data.test)
    if not torch.equal(before, after):
        raise VerificationError(f"{int((before != after).sum())} of {len(after)} predictions changed; none may")

    tuned = load(checkpoint)
    report_epoch = _epochs(progress, "fine-tuning the T-CNN", finetune_epochs)
    digits.fit(
        tuned, data.train, data.train_labels, finetune_epochs, 5e-4, seed, anneal_epochs=max(1, finetune_epochs // 2),
        progress=report_epoch,
    )  # fmt: skip
    progress("comparing")
    if keep:
        save(tuned, directory / "t_resnet-digits-finetuned.safetensors", force=True)
    labels = data.test_labels
    rows = [
        Row(model="source CNN", top1=digits.accuracy(before, labels), parameters=report.parameters_before),
        Row(
            model="converted",
            top1=digits.accuracy(after, labels),
            parameters=report.parameters_after,
            equivalence_error=verdict.passes[0].logits.relative,
            drift_at_1=verdict.drift.logits.relative,
        ),
        Row(
            model="fine-tuned",
            top1=digits.accuracy(digits.predictions(tuned, data.test), labels),
            parameters=report.parameters_after,
        ),
    ]
    return DemoResult(
        images=f"{len(data.train)} handwritten digits to train on, {len(data.test)} held out",
        rows=rows,
        predictions_unchanged=True,
        held_out=len(data.test),
        checkpoint=str(checkpoint) if keep else None,
        seconds=round(time.monotonic() - started, 1),
    )


_PREDICT = """
import sys, torch, tcnn
from safetensors.torch import load_file, save_file
model, images, out = tcnn.load(sys.argv[1]), load_file(sys.argv[2])["images"], sys.argv[3]
with torch.no_grad():
    save_file({"predictions": torch.cat([model(b).argmax(1) for b in images.split(256)])}, out)
"""


def _predict_elsewhere(checkpoint: Path, directory: Path, images: Tensor) -> Tensor:
    """Load the file in a new Python process, which has never seen the model, and predict there."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        given, found = Path(scratch) / "images.safetensors", Path(scratch) / "predictions.safetensors"
        save_file({"images": images}, given)
        subprocess.run([sys.executable, "-c", _PREDICT, str(checkpoint), str(given), str(found)], check=True)  # noqa: S603
        return load_file(found)["predictions"]


def _epochs(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    progress(f"{what} (epoch 1 of {total})")

    def report(done: int) -> None:
        if done < total:
            progress(f"{what} (epoch {done + 1} of {total})")

    return report
