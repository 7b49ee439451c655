"""Images per second of whole networks, for inference and for a training step, side by side in one run.

    python benchmarks/throughput.py [--device cpu|cuda] [--threads 2] [--batch 4] [--rounds 9] [--size 224]

Every network is run in turn, round by round; ratios are medians over the rounds. The pairs that matter: a T-CNN of the
paper (stride removed, τ = 1) beside the same CNN without its stride; a conversion that has not been trained beside its
CNN; the same conversion folded. Beside them timm's own networks with attention. The floor is what the extra
multiply-adds would cost at the speed of the CNN itself. Results go to `benchmarks/results/throughput_DEVICE.json`.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import torch
from machine import fill, processor
from stopwatch import timed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tcnn
from tcnn.conversion.surgery import without_stride
from tcnn.layers.backends import use_backend

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
NEIGHBOURS = {"botnet26t_256": 256, "halonet26t": 256, "lambda_resnet26t": 256, "convit_small": 224}
"""Attention in timm's ResNets, and the transformer that GPSA comes from, each at the size that it is made for."""


def networks(base: str) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    cnn = timm.create_model(base)
    return {
        base: cnn,
        f"{base}, stride removed": without_stride(cnn),
        f"T-{base}: stride removed, τ = 1": tcnn.convert(cnn, stride="remove", temperature=1.0).model,
        f"T-{base}: stride kept, τ = 1": tcnn.convert(cnn, temperature=1.0).model,
        f"{base} converted, not yet trained": tcnn.convert(cnn).model,
        **{name: timm.create_model(name) for name in NEIGHBOURS},
    }


PAIRS = (
    ("T-{}: stride removed, τ = 1", "{}, stride removed"),
    ("T-{}: stride kept, τ = 1", "{}"),
    ("{} converted, not yet trained", "{}"),
)


def multiply_adds(model: nn.Module, size: int) -> float:
    """Of one image, with the dense attention, as in training: W_val is a product of its own."""
    with FlopCounterMode(display=False) as counter, torch.enable_grad(), use_backend("dense"):
        model(torch.randn(1, 3, size, size))
    return counter.get_total_flops() / 2


def step(model: nn.Module, x: Tensor, training: bool) -> Callable[[], object]:
    def inference() -> None:
        with torch.no_grad():
            model(x)

    def update() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return update if training else inference


def measure(models: dict[str, nn.Module], options: argparse.Namespace, training: bool) -> dict[str, list[float]]:
    """Seconds of every round."""
    works = {}
    for name, model in models.items():
        size = NEIGHBOURS.get(name, options.size)
        x = torch.randn(options.batch, 3, size, size).to(options.device, next(model.parameters()).dtype)
        works[name] = step(model.train(training), x, training)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.rounds + 2):
        for name, work in works.items():
            taken = timed(work, options.device)
            if number >= 2:
                seconds[name].append(taken)
    return seconds


def table(result: dict[str, Any]) -> str:
    """The rows of docs/speed.md."""
    lines = [
        "| network | | images/s | 10⁹ multiply-adds | beside | images/s ÷ its | its multiply-adds ÷ these |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [row["network"], row["what"], f"{row['images_per_second']:.2f}", f"{row['giga_multiply_adds']:.2f}"]
        pair = "against" in row
        cells += [row["against"], f"{row['ratio']:.2f}", f"{row['ratio_of_multiply_adds']:.2f}"] if pair else [""] * 3
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="resnet50")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    models = networks(options.base)
    work = {name: multiply_adds(model.eval(), NEIGHBOURS.get(name, options.size)) for name, model in models.items()}
    models = {name: model.to(options.device, dtype) for name, model in models.items()}
    rows: list[dict[str, Any]] = []
    for training in (False, True):
        seconds = measure(models, options, training)
        what = "training step" if training else "inference"
        for name, times in seconds.items():
            row = {
                "network": name, "what": what, "images_per_second": round(options.batch / statistics.median(times), 2),
                "giga_multiply_adds": round(work[name] / 1e9, 2),
            }  # fmt: skip
            for ours, theirs in PAIRS:
                if name == ours.format(options.base):
                    against = theirs.format(options.base)
                    ratio = statistics.median(b / a for a, b in zip(times, seconds[against], strict=True))
                    row |= {"against": against, "ratio": round(ratio, 3)}
                    row["ratio_of_multiply_adds"] = round(work[against] / work[name], 3)
            rows.append(row)
            print(row)
    result = {
        "device": options.device, "dtype": str(dtype).removeprefix("torch."), "batch": options.batch,
        "size": options.size, "threads": options.threads, "rows": rows,
        "hardware": processor() if options.device == "cpu" else torch.cuda.get_device_name(),
        "versions": {name: version(name) for name in ("tcnn", "torch", "timm")},
    }  # fmt: skip
    out = options.out or RESULTS / f"throughput_{options.device}.json"
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.device == "cpu" and not options.out:
        fill(PAGE, "throughput", table(result))


if __name__ == "__main__":
    main()
