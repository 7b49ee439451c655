"""The demo: train a CNN, convert it, verify, save, reload in a new process, fine-tune CNN and T-CNN, compare."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tcnn.checkpoints.checkpoint import load, save
from tcnn.config import FinetuneConfig, finetune_config
from tcnn.conversion.surgery import convert
from tcnn.data.image_set import ImageSet
from tcnn.data.loader import EvaluationLoader
from tcnn.demo import digits
from tcnn.errors import VerificationError
from tcnn.evaluation.comparing.before_after import Estimate, estimate
from tcnn.evaluation.evaluate import transform_for
from tcnn.evaluation.scores import paired
from tcnn.training.finetune import finetune
from tcnn.training.runs.callbacks import Progress, Report
from tcnn.verification.verify import verify

Step = Callable[[str], None]
CONTENT_HEADS = 4
"""Number of content heads, as in the preset for small data."""


class Row(BaseModel):
    """One line of the demo's table."""

    model: str
    top1: float
    parameters: int
    equivalence_error: float | None = None
    drift_at_1: float | None = None


class DemoResult(BaseModel):
    """Result of the demo, as `tcnn demo --json` prints it."""

    images: str
    rows: list[Row]
    gain: Estimate
    """Of the fine-tuned T-CNN over the fine-tuned CNN."""
    predictions_unchanged: bool
    held_out: int
    checkpoint: str | None
    run: str | None
    """Run directory of the T-CNN's fine-tuning."""
    seconds: float


def run(directory: Path, keep: bool, epochs: int, finetune_epochs: int, seed: int, step: Step) -> DemoResult:
    """Run the demo; raises `VerificationError` if a single prediction changes.

    Args:
        directory: receives all files.
        keep: whether it is kept, so that the result may name it.
        epochs: of the source CNN.
        finetune_epochs: of fine-tuning, as CNN and as T-CNN.
        step: called with the name of every step.
    """
    started = time.monotonic()
    step("drawing the scenes")
    train, held_out = digits.write_scenes(directory / "scenes", seed)
    tell = _teller(step, "training the CNN")
    trained = finetune(
        _source(seed), train, held_out, _recipe(epochs, seed, convert=False, lr=4e-3),
        directory / "cnn", force=True, report=tell,
    )  # fmt: skip
    source = load(trained.last, source=_source(seed))
    images, labels = _tensors(source, held_out)
    before = predictions(source, images)

    step("converting")
    model, report = convert(source, seed=seed, content_heads=CONTENT_HEADS)
    step("verifying")
    verdict = verify(source, model, images=images[:64])
    failure = verdict.failure()
    if failure:
        raise VerificationError(failure)
    checkpoint = save(model, directory / "t_resnet-scenes.safetensors", verdict, force=True)
    step("reloading in a fresh process")
    after = _predict_elsewhere(checkpoint, directory, images)
    if not torch.equal(before, after):
        raise VerificationError(f"{int((before != after).sum())} of {len(after)} predictions changed; none may")

    both = []
    for name, start, changes in (("CNN", source, {"convert": False}), ("T-CNN", checkpoint, {"attention_lr": 5e-3})):
        tell = _teller(step, f"fine-tuning the {name}")
        recipe = _recipe(finetune_epochs, seed, lr=2e-3, **changes)
        both.append(
            finetune(start, train, held_out, recipe, directory / f"finetuned-{name.lower()}", force=True, report=tell)
        )
    cnn, tuned = both
    step("comparing")
    cnn_right = predictions(load(cnn.last, source=_source(seed)), images) == labels
    tuned_right = predictions(load(tuned.last), images) == labels
    rows = [
        Row(model="source CNN", top1=_share(before, labels), parameters=report.parameters_before),
        Row(model="fine-tuned CNN", top1=cnn.top1, parameters=report.parameters_before),
        Row(
            model="converted",
            top1=_share(after, labels),
            parameters=report.parameters_after,
            equivalence_error=verdict.passes[0].logits.relative,
            drift_at_1=verdict.drift.logits.relative,
        ),
        Row(model="fine-tuned T-CNN", top1=tuned.top1, parameters=report.parameters_after),
    ]
    return DemoResult(
        images=f"digits in clutter, {len(train)} to train on, {len(held_out)} held out",
        rows=rows,
        gain=estimate(paired(cnn_right.numpy(), tuned_right.numpy())),
        predictions_unchanged=True,
        held_out=len(held_out),
        checkpoint=str(checkpoint) if keep else None,
        run=tuned.out if keep else None,
        seconds=round(time.monotonic() - started, 1),
    )


def _source(seed: int) -> nn.Module:
    """A small ResNet for grey images; at an output stride of 16 its last stage works on 4×4 maps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = timm.create_model("test_resnet", num_classes=10, in_chans=1, output_stride=16)
    own = {
        "input_size": (1, digits.SIZE, digits.SIZE), "mean": (digits.SCENES_MEAN,), "std": (digits.SCENES_STD,),
        "crop_pct": 1.0,
    }  # fmt: skip
    model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, **own}
    return model


def _recipe(epochs: int, seed: int, **changes: Any) -> FinetuneConfig:
    """The preset for small data with shifts and scaling only, since a mirrored or tilted digit is no digit."""
    own = {
        "epochs": epochs, "size": digits.SIZE, "batch_size": 32, "seed": seed, "workers": 0, "hflip": 0.0,
        "scale": (0.8, 1.0), "ratio": (0.9, 1.1), "smoothing": 0.0, "device": "cpu", "checkpoint_minutes": 60,
    }  # fmt: skip
    return finetune_config("quick", options={**own, **changes})


def _tensors(model: nn.Module, data: ImageSet) -> tuple[Tensor, Tensor]:
    """All images as model inputs, and their classes."""
    batches = list(EvaluationLoader(data, transform_for(model), batch_size=64))
    return torch.cat([batch.images for batch in batches]), torch.cat([batch.targets for batch in batches])


@torch.no_grad()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """Predicted class of every image, (N,)."""
    model.eval()
    return torch.cat([model(batch).argmax(1) for batch in images.split(256)])


def _share(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()


_PREDICT = """
import sys
from tcnn.processes import QuickExit, loading
leave = QuickExit()
with loading():
    import torch, tcnn
    from safetensors.torch import load_file, save_file
model, images, out = tcnn.load(sys.argv[1]), load_file(sys.argv[2])["images"], sys.argv[3]
with torch.no_grad():
    save_file({"predictions": torch.cat([model(b).argmax(1) for b in images.split(256)])}, out)
leave(0)
"""


def _predict_elsewhere(checkpoint: Path, directory: Path, images: Tensor) -> Tensor:
    """Load the checkpoint in a new Python process and predict there."""
    given, found = directory / ".images.safetensors", directory / ".predictions.safetensors"
    try:
        save_file({"images": images}, given)
        subprocess.run([sys.executable, "-c", _PREDICT, str(checkpoint), str(given), str(found)], check=True)  # noqa: S603
        return load_file(found)["predictions"]
    finally:
        given.unlink(missing_ok=True)
        found.unlink(missing_ok=True)


def _teller(step: Step, what: str) -> Report:
    """A progress callback that announces every epoch as a step of the demo."""
    announced = 0

    def report(now: Progress) -> None:
        nonlocal announced
        if now.epoch > announced:
            announced = now.epoch
            step(f"{what} (epoch {now.epoch} of {now.epochs})")

    return report
