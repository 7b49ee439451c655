"""How far a converted model is from its CNN, against the temperature τ: the numbers and the picture of docs/math.md.

    python -m benchmarks.layer.drift            measure (minutes, one thread), write CSV and picture, print the tables
    python -m benchmarks.layer.drift --redraw   picture and tables from the CSV as it stands

Seven timm models with random weights and randomised statistics, on noise; and a ResNet-20 that others trained on
CIFAR-10 (He et al. 2016, §4.2), on the 5,000 validation images. That ResNet and the images are not part of the project:
`TCNN_TEST_DATA` says where they are.
"""

import argparse
import csv
import io
import math
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import timm
import torch
from torch import Tensor, nn

import tcnn
from benchmarks.reproduce.networks.published import pretrained
from tcnn.config import HARD_TEMPERATURE
from tcnn.config.base import ErrorStats
from tcnn.data.decode import open_image
from tcnn.models.difference import errors
from tcnn.models.randomise import randomised
from tcnn.models.running import at_temperature

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/drift.csv"
PICTURE = ROOT / "docs/img/temperature.png"
DATA = Path(os.environ.get("TCNN_TEST_DATA", ROOT.parent / "shared/data"))

MODELS = ("resnet18", "resnet50d", "resnext50_32x4d", "convnext_atto", "efficientnet_b0", "regnety_002", "resnetv2_50")
TRAINED = "resnet20-cifar10"
TEMPERATURES = (HARD_TEMPERATURE, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
ON_PAGE = (round(HARD_TEMPERATURE, 7), 0.1, 0.2, 0.3, 0.5, 1.0)
IMAGES = 4

Row = dict[str, str]


def cifar_validation() -> tuple[Tensor, Tensor]:
    """All validation images (5000, 3, 32, 32), normalised as the ResNet-20 was trained, and their labels."""
    images: dict[str, np.ndarray] = {}
    with tarfile.open(DATA / "cifar10.tar.xz") as archive:
        for member in archive:
            if member.isfile() and member.name.startswith("cifar10/val/"):
                file = archive.extractfile(member)
                assert file is not None
                images[member.name] = np.asarray(open_image(io.BytesIO(file.read())).convert("RGB"))
    names = sorted(images)
    classes = sorted({Path(name).parent.name for name in names})
    labels = torch.tensor([classes.index(Path(name).parent.name) for name in names])
    pixels = torch.from_numpy(np.stack([images[name] for name in names])).permute(0, 3, 1, 2).contiguous().float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (pixels - mean[:, None, None]) / std[:, None, None], labels


def layer_error(temperature: float) -> float:
    """What theory says of one layer at α = λ = 1: Eq. 6 of docs/math.md, written so that no digits cancel."""
    around, around_2 = (2 * sum(math.exp(-k * n * n / temperature) for n in range(1, 60)) for k in (1, 2))
    content = 1 / (1 + math.exp(1 / temperature))
    theta = 1 + around
    missing = (around * (theta + 1) + content) / theta**2
    return math.sqrt(missing**2 + (1 - content) ** 2 * around_2 * (2 + around_2) / theta**4)


def compare(
    source: nn.Module, conversion: tcnn.Conversion, batch: Tensor, common: Row, labels: Tensor | None = None
) -> Iterator[Row]:
    """Logits and layers at every τ in float32; with labels also the answers, and the CNN's own (τ left blank)."""
    model, report = conversion
    shapes: dict[str, torch.Size] = {}
    for layer in report.layers:
        conv = source.get_submodule(layer.name)
        conv.register_forward_pre_hook(lambda _, args, name=layer.name: shapes.update({name: args[0].shape}))
    parts = batch.split(100)
    expected = torch.cat([source(part) for part in parts])
    if labels is not None:
        yield {**common, **answers(expected, expected, labels)}
    for temperature in TEMPERATURES:
        with at_temperature(model, temperature):
            found = torch.cat([model(part) for part in parts])
            per_layer = [noise_error(source, model, name, shape) for name, shape in shapes.items()]
        yield {
            **common, "temperature": f"{temperature:.6g}", **digits(errors(expected, found)),
            "layer_relative": f"{sum(per_layer) / len(per_layer):.6g}",
            **({} if labels is None else answers(expected, found, labels)),
        }  # fmt: skip


def noise_error(source: nn.Module, model: nn.Module, name: str, shape: torch.Size) -> float:
    """Relative L2 error of one replacement on white noise of the shape that it sees."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return errors(source.get_submodule(name)(noise), model.get_submodule(name)(noise)).relative


def answers(expected: Tensor, found: Tensor, labels: Tensor) -> Row:
    got = found.argmax(1)
    return {"right": str(int((got == labels).sum())), "same_answer": str(int((got == expected.argmax(1)).sum()))}


def digits(stats: ErrorStats) -> Row:
    return {key: f"{value:.6g}" for key, value in stats.model_dump(exclude_none=True).items()}


def measure(name: str, source: nn.Module, batch: Tensor, images: str, labels: Tensor | None = None) -> Iterator[Row]:
    """One model: verified at 1/46 (of which the float64 error is kept), then compared at every τ."""
    weights = "random" if labels is None else "trained"
    conversion = tcnn.convert(source, input_size=tuple(batch.shape[-2:]))
    report = conversion.report
    some = batch[:: max(1, len(batch) // 100)]
    verdict = tcnn.verify(source, conversion.model, images=some, randomise=labels is None)
    if not verdict.passed:
        raise SystemExit(f"{name}: {verdict.failure()}")
    common = {
        "model": name, "weights": weights, "images": images, "layers": str(len(report.layers)),
        "parameters_before": str(report.parameters_before), "parameters_after": str(report.parameters_after),
        "dtype": "float32",
    }  # fmt: skip
    exact = next(result for result in verdict.passes if result.dtype == "float64")
    yield {**common, "dtype": "float64", "temperature": f"{HARD_TEMPERATURE:.6g}", **digits(exact.logits)}
    with torch.no_grad(), randomised(source, conversion.model, batch, verdict.seed, enabled=labels is None):
        yield from compare(source, conversion, batch, common, labels)


def random_model(name: str) -> Iterator[Row]:
    torch.manual_seed(0)
    batch = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return measure(name, timm.create_model(name).eval(), batch, f"noise {IMAGES}×3×224×224")


def trained_model() -> Iterator[Row]:
    source = pretrained(DATA / "resnet20-cifar10.safetensors")
    images, labels = cifar_validation()
    return measure(TRAINED, source, images, f"CIFAR-10 val {len(images)}×3×32×32", labels)


def write(rows: list[Row]) -> None:
    cpu = (
        re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if Path("/proc/cpuinfo").exists()
        else None
    )
    fields = [*rows[0], "layer_relative", "right", "same_answer"]
    with RESULTS.open("w", newline="") as file:
        file.write(
            f"# tcnn {tcnn.__version__}, torch {torch.__version__}, timm {timm.__version__}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}\n"
            f"# {cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, 1 thread\n"
        )
        writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read() -> list[Row]:
    lines = RESULTS.read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def series(rows: list[Row], name: str, value: str) -> dict[float, float]:
    """`value` of a model in float32 against τ, coldest first."""
    mine = [r for r in rows if r["model"] == name and r["dtype"] == "float32" and r["temperature"] and r[value]]
    return {float(r["temperature"]): float(r[value]) for r in mine}


def draw(rows: list[Row]) -> None:
    """docs/img/temperature.png: accuracy on the left, relative error on the right, both against τ."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F")  # Okabe & Ito, and grey
    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 5.2), layout="constrained")
    accuracy = {t: n / 50 for t, n in series(rows, TRAINED, "right").items()}
    cnn = next(float(r["right"]) / 50 for r in rows if r["right"] and not r["temperature"])
    left.axhline(cnn, color="black", linestyle="--", linewidth=1, label=f"the CNN: {cnn:.1f} %")
    left.plot(accuracy.keys(), accuracy.values(), "o-", color=colours[0], label="the converted model")
    left.set(title="ResNet-20 trained on CIFAR-10", ylabel="top-1 accuracy (%)", ylim=(0, 100))
    left.legend(loc="lower left", frameon=False)
    for name, colour, marker in zip(MODELS, colours, "os^vDPX", strict=True):
        points = series(rows, name, "relative")
        right.plot(points.keys(), points.values(), marker + "-", color=colour, markersize=5, linewidth=1.2, label=name)
    points = series(rows, TRAINED, "relative")
    right.plot(points.keys(), points.values(), "k*-", markersize=8, linewidth=1.2, label="ResNet-20, trained")
    cold = [0.055 * 1.03**i for i in range(99)]
    right.plot(cold, [layer_error(t) for t in cold], "k--", linewidth=1.5, label="one layer, closed form")
    right.set(title="Distance from the CNN", ylabel="relative error of the logits (L2)", yscale="log", ylim=(1e-8, 10))
    right.legend(loc="lower right", frameon=False, fontsize=10)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="temperature τ (log axis)")
        axes.set_xticks([HARD_TEMPERATURE, 0.05, 0.1, 0.2, 0.5, 1], ["1/46", "0.05", "0.1", "0.2", "0.5", "1"])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


def tables(rows: list[Row]) -> str:
    """The two tables of measurements in docs/math.md, ready to paste."""
    blank = next(r for r in rows if r["right"] and not r["temperature"])
    lines = ["| | right of 5,000 | top-1 | same answer | error of the logits |", "|---|---|---|---|---|"]
    right, same, error = (series(rows, TRAINED, key) for key in ("right", "same_answer", "relative"))
    lines.append(f"| CNN | {int(blank['right']):,} | {int(blank['right']) / 50:.1f} % | 5,000 | |")
    for t in right:
        if t in ON_PAGE:
            head = f"| converted, τ = {label(t)} | {int(right[t]):,} | {right[t] / 50:.1f} %"
            lines.append(f"{head} | {int(same[t]):,} | {short(error[t])} |")
    lines += ["", f"| model | layers | float64, τ = 1/46 | float32, τ = 1/46 | {' | '.join(map(label, ON_PAGE[1:]))} |"]
    lines.append("|---" * (len(ON_PAGE) + 3) + "|")
    measured: dict[float, list[float]] = {}
    for name in MODELS:
        mine = [r for r in rows if r["model"] == name]
        exact = next(float(r["relative"]) for r in mine if r["dtype"] == "float64")
        values = [v for t, v in series(rows, name, "relative").items() if t in ON_PAGE]
        lines.append(f"| {name} | {mine[0]['layers']} | {short(exact)} | {' | '.join(map(short, values))} |")
        for t, value in series(rows, name, "layer_relative").items():
            measured.setdefault(t, []).extend([value] * int(mine[0]["layers"]))
    means = [sum(v) / len(v) for t, v in measured.items() if t in ON_PAGE]
    lines.append(f"| *one layer, measured* | | | {' | '.join(map(short, means))} |")
    lines.append(f"| *one layer, closed form* | | | {' | '.join(short(layer_error(t)) for t in ON_PAGE)} |")
    return "\n".join(lines)


def label(temperature: float) -> str:
    return "1/46" if temperature == ON_PAGE[0] else f"{temperature:g}"


def short(error: float) -> str:
    """Per cent for what a person would call an error, powers of ten for rounding."""
    if error < 1e-6:
        mantissa, exponent = f"{error:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{100 * error:.1f} %" if error >= 1e-3 else f"{100 * error:.1g} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="measure nothing: use the CSV as it stands")
    if not parser.parse_args().redraw:
        if not DATA.is_dir():
            raise SystemExit(f"{DATA}: no such directory; set TCNN_TEST_DATA to where cifar10.tar.xz is")
        torch.set_num_threads(1)
        rows: list[Row] = []
        for name in (*MODELS, TRAINED):
            rows += trained_model() if name == TRAINED else random_model(name)
            print(f"{name}: {rows[-1]['relative']} at τ = 1", file=sys.stderr)
        write(rows)
    draw(read())
    print(tables(read()))


if __name__ == "__main__":
    main()
