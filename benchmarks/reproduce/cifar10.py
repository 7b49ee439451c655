"""The paper's comparison in small: a CNN as it is, fine-tuned, and fine-tuned as a T-CNN in four ways.

    python benchmarks/reproduce/cifar10.py --data cifar10/ --weights resnet20-cifar10.safetensors
    python benchmarks/reproduce/cifar10.py --data photos/ --model resnet18 --size 64

Every way gets the same images, epochs, batches and learning rate; only what is trained differs. Clean accuracy is taken
on all validation images, corruption accuracy as the mean over the fifteen corruptions of ImageNet-C at five severities
on a class-balanced part of them. A row is written as soon as it is known, and rows that are there are not run again.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch
from resnet20 import pretrained
from torch import nn

import tcnn
from tcnn.config import FinetuneConfig, finetune_config
from tcnn.conversion.sources import create_source
from tcnn.data.image_set import ImageSet, class_balanced, open_dataset
from tcnn.evaluation.corruptions import CORRUPTIONS
from tcnn.evaluation.evaluate import evaluate
from tcnn.training.progress import Progress
from tcnn.training.rundir import RunDirectory

RESULTS = Path(__file__).parents[1] / "results" / "reproduce_cifar10.json"
WAYS = {
    "CNN, as it is": None,
    "CNN, fine-tuned": {"convert": False},
    "T-CNN from τ = 1": {"anneal": "none"},
    "T-CNN, annealed": {},
    "T-CNN, late": {"convert_at": -1},
    "T-CNN, annealed, fast positions": {"position_lr": 0.02},
}
"""What is compared, as settings of the same recipe; −1 stands for half of the epochs."""


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    source = pretrained(options.weights) if options.model is None else create_source(options.model)
    train = open_dataset(options.data, "train")
    everything = open_dataset(options.data, "validation", class_names=train.class_names)
    train = class_balanced(train, options.fraction, 0)
    quick = class_balanced(everything, min(1.0, options.quick / len(everything)), 0)
    corrupted = class_balanced(everything, min(1.0, options.corrupted / len(everything)), 1)
    results = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    results["setting"] = setting(options, train, everything, corrupted)
    done = {(row["way"], row["seed"]) for row in results["rows"]}
    for seed in options.seeds:
        for way, changes in WAYS.items():
            if options.ways and way not in options.ways:
                continue
            if (way, seed) in done or (changes is None and seed != options.seeds[0]):
                continue
            row = run(way, changes, seed, source, train, quick, everything, corrupted, options)
            results["rows"].append(row)
            results["summary"] = summary(results["rows"])
            options.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
            print(f"{way}, seed {seed}: {row['top1']:.2%} clean, {row['corruption_top1']:.2%} corrupted", flush=True)


def run(
    way: str, changes: dict[str, object] | None, seed: int, source: nn.Module, train: ImageSet, quick: ImageSet,
    everything: ImageSet, corrupted: ImageSet, options: argparse.Namespace,
) -> dict[str, object]:  # fmt: skip
    """One row: train in one way with one seed, then measure."""
    started = time.monotonic()
    row: dict[str, object] = {"way": way, "seed": seed}
    if changes is None:
        model = source
    else:
        half = {"convert_at": options.epochs // 2} if changes.get("convert_at") == -1 else changes
        config = recipe(options, seed, half)
        own = None if options.model else source
        with tempfile.TemporaryDirectory() as scratch:
            last = RunDirectory(Path(scratch)).last

            def after_the_first(now: Progress) -> None:
                """The first epoch is judged on all images: a cliff would show there."""
                if now.epoch == 2 and "first_epoch_top1" not in row:
                    row["first_epoch_top1"] = score(tcnn.load(last, source=own), everything, options)

            tcnn.finetune(source, train, quick, config, out=scratch, say=print, report=after_the_first)
            epochs = RunDirectory(Path(scratch)).rows("epoch")
            model = tcnn.load(last, source=own)
        row["epochs_top1"] = [round(epoch["val"]["top1"], 4) for epoch in epochs]
        row["train_loss"] = [round(epoch["train_loss"], 4) for epoch in epochs]
        row["gate_mean"] = epochs[-1]["gate_mean"]
        row["span_mean"] = epochs[-1]["span_mean"]
    row["top1"] = score(model, everything, options)
    by = {
        name: [score(model, corrupted, options, (name, severity)) for severity in range(1, 6)] for name in CORRUPTIONS
    }
    row["corruption_top1"] = statistics.mean(value for values in by.values() for value in values)
    row["by_corruption"] = {name: round(statistics.mean(values), 4) for name, values in by.items()}
    row["seconds"] = round(time.monotonic() - started)
    return row


def score(
    model: nn.Module, data: ImageSet, options: argparse.Namespace, corruption: tuple[str, int] | None = None
) -> float:
    return evaluate(model, data, size=options.size, batch_size=100, corruption=corruption).top1


def recipe(options: argparse.Namespace, seed: int, changes: dict[str, object]) -> FinetuneConfig:
    """The same for all: the small-image preset with this run's lengths."""
    return finetune_config(
        "cifar", None, options.set,
        {
            "epochs": options.epochs, "size": options.size, "seed": seed, "workers": 0,
            "warmup_epochs": options.warmup_epochs, "checkpoint_minutes": 60, "device": options.device,
            "position_lr": None, **changes,
        },
    )  # fmt: skip


def summary(rows: list[dict]) -> list[dict]:
    """Mean and standard deviation over seeds."""
    table = []
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        if not own:
            continue
        entry: dict[str, object] = {"way": way, "seeds": len(own)}
        for key in ("first_epoch_top1", "top1", "corruption_top1"):
            values = [row[key] for row in own if key in row]
            if not values:
                continue
            entry[key] = round(statistics.mean(values), 4)
            entry[f"{key}_std"] = round(statistics.stdev(values), 4) if len(values) > 1 else None
        table.append(entry)
    return table


def setting(options: argparse.Namespace, train: ImageSet, val: ImageSet, corrupted: ImageSet) -> dict[str, object]:
    config = recipe(options, 0, {}).model_dump(mode="json", exclude_defaults=True)
    return {
        "model": options.model or "ResNet-20 (He et al. 2016)",
        "train_images": len(train), "val_images": len(val), "epoch_val_images": options.quick,
        "corrupted_images": len(corrupted), "config": config,
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, device {options.device}",
        "versions": {name: version(name) for name in ("tcnn", "torch", "timm")},
    }  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="class folders in train/ and val/")
    parser.add_argument("--weights", type=Path, help="the CIFAR-10 ResNet-20's safetensors file")
    parser.add_argument("--model", help="a timm model instead of the ResNet-20")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="*", metavar="WAY", help=f"some of: {', '.join(WAYS)}")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--fraction", type=float, default=0.1, help="share of the training images")
    parser.add_argument("--quick", type=int, default=1000, help="validation images after every epoch")
    parser.add_argument("--corrupted", type=int, default=200, help="validation images that are corrupted")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the recipe")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.model is None and options.weights is None:
        parser.error("--weights: name the ResNet-20's file, or another model with --model")
    return options


if __name__ == "__main__":
    main()
