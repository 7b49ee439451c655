"""What the training loop costs beside a bare PyTorch loop with the same loader, model and optimizer.

    python -m benchmarks.models.train_overhead [--model resnet18] [--size 96] [--device cpu] [--pairs 10]

Both train a T-CNN on the same images in the same order, in turn (A B B A …) and in one process. Timed is from the end
of the second step of an epoch to the end of its last: neither start-up counts nor validation, nor the resume point that
is written after the first step of a run, whose seconds are given apart. The loop does meanwhile all that it does for a
user: gradient accumulation, τ, schedules, metrics, progress, a check of every loss. Reported are medians of images/s,
and the median of the ratios pair by pair, which holds when the machine's speed drifts.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy
import timm
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import tcnn
from benchmarks.reporting import hardware, versions
from tcnn.config import ConversionConfig, FinetuneConfig, finetune_config
from tcnn.data.image_set import open_dataset, training_transform
from tcnn.data.loader import TrainingLoader
from tcnn.models.trace import input_settings
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.updates.step import MixedPrecision

RESULTS = Path(__file__).parents[1] / "results" / "train_overhead.json"


def draw(root: Path, images: int, size: int) -> None:
    """Noise pictures of two classes, and two to validate on."""
    random = numpy.random.default_rng(0)
    for split, count in (("train", images), ("val", 2)):
        for number in range(count):
            path = root / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 255, (size, size, 3), dtype=numpy.uint8)).save(path)


def bare(model: nn.Module, data: str, config: FinetuneConfig) -> list[float]:
    """When every step of the shortest loop that trains alike ended."""
    device = torch.device(config.device)
    precision = MixedPrecision(config, device)
    model = model.to(device).train()
    optimizer = create_optimizer(model, config)
    settings = input_settings(model)
    transform = training_transform(
        size=(config.size, config.size),
        mean=settings["mean"],
        std=settings["std"],
        scale=config.scale,
        ratio=config.ratio,
    )
    loader = TrainingLoader(
        open_dataset(data, "train"), transform, batch_size=config.batch_size, micro_batch=config.micro_batch,
        seed=0, workers=config.workers, pin_memory=device.type == "cuda",
    )  # fmt: skip
    marks = []
    for number, batch in enumerate(loader.epoch(0), 1):
        x, y = batch.images.to(device, non_blocking=True), batch.targets.to(device, non_blocking=True)
        with precision.autocast():
            loss = F.cross_entropy(model(x), y, label_smoothing=config.smoothing) / loader.micro_batches
        loss.backward()
        if number % loader.micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            marks.append(time.perf_counter())
    loader.close()
    return marks


def loop(model: nn.Module, data: str, config: FinetuneConfig) -> list[float]:
    """When every step of `tcnn.finetune` ended."""
    marks = []
    with tempfile.TemporaryDirectory() as scratch:
        tcnn.finetune(
            model, data, config=config, out=scratch,
            report=lambda now: marks.append(time.perf_counter()) if now.phase == "training" else None,
        )  # fmt: skip
    return marks


def images_per_second(marks: list[float], config: FinetuneConfig) -> float:
    """From the end of the second step to that of the last."""
    return config.batch_size * (len(marks) - 2) / (marks[-1] - marks[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = finetune_config(
        "quick",
        options={
            "epochs": 1, "warmup_epochs": 0, "anneal": "none", "size": options.size, "batch_size": options.batch_size,
            "micro_batch": options.micro_batch, "workers": options.workers, "device": options.device, "log_steps": 1,
        },
    )  # fmt: skip
    conversion = ConversionConfig(temperature=1.0, input_size=(options.size, options.size))
    rates: dict[str, list[float]] = {"bare": [], "tcnn": []}
    saving = []
    with tempfile.TemporaryDirectory() as scratch:
        draw(Path(scratch), options.images, options.size)
        for pair in range(options.pairs + 1):
            for name, run in (("bare", bare), ("tcnn", loop))[:: -1 if pair % 2 else 1]:
                source = timm.create_model(options.model, num_classes=2)
                model = tcnn.convert(source, conversion).model
                marks = run(model, scratch, config)
                if not pair:  # it only warms up
                    continue
                rates[name].append(images_per_second(marks, config))
                if name == "tcnn":
                    saving.append(marks[1] - marks[0] - config.batch_size / rates[name][-1])
    ratio = statistics.median(a / b for a, b in zip(rates["bare"], rates["tcnn"], strict=True))
    result = {
        "model": f"t_{options.model}", "size": options.size, "batch_size": options.batch_size,
        "micro_batch": options.micro_batch, "pairs": options.pairs, "images": options.images,
        "images_per_second": {name: round(statistics.median(values), 2) for name, values in rates.items()},
        "overhead": round(ratio - 1, 4), "resume_point_seconds": round(statistics.median(saving), 3),
        "hardware": f"{hardware(options.device)}, {options.threads} threads, device {options.device}",
        "versions": versions("tcnn", "torch", "timm"),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
