"""Accuracy against the number of pruned heads (Cordonnier et al. 2020, App. E): what are a network's heads worth?

    python benchmarks/reproduce/pruning.py quadratic=runs/positions/quadratic-0-DIGEST/last.safetensors \
        --network resnet20 --data cifar10/

Every layer loses one head after the other, until one is left, in several orders: those that look farthest first, those
that look nearest first, those with the smallest output weights first, and by lot. Nothing is trained in between; with
--statistics batch normalisation takes its statistics anew on training images, which is no training either. `tcnn fold
--prune` is measured beside, with several distances. Results go to benchmarks/results/pruning.json, the picture to
docs/img/pruned-heads.png. With --centres FILE nothing is measured: where the heads look is drawn there.
"""

import argparse
import copy
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from networks.building import OWN
from torch import Tensor, nn

import tcnn
from tcnn.analysis.plots import style
from tcnn.analysis.plots.centres import centres
from tcnn.data.image_set import class_balanced, open_dataset
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.evaluation import scores
from tcnn.evaluation.evaluate import transform_for
from tcnn.files import replacing
from tcnn.folding.fold import fused
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.training.recipe.annealing import batch_norms, reestimate_batch_norm

sys.path.append(str(Path(__file__).parents[1]))
from reporting import hardware, versions

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "pruning.json"
PICTURE = ROOT / "docs" / "img" / "pruned-heads.png"
ORDERS = {
    "near": "those that look nearest first", "far": "those that look farthest first",
    "light": "smallest output weights first", "lot": "by lot, mean of two",
}  # fmt: skip
LOTS = 2
DISTANCES = (None, 3.0, 2.0, 1.2)
"""`--far` of `tcnn fold --prune`; None is its default, outside of the map."""
BATCH = 100


class Layer(NamedTuple):
    """A layer whose heads are pruned."""

    weights: Tensor
    """W_out, (C_out, K, C), a view of the parameter."""
    distances: Tensor
    """Of every head's centre from the query, (K,), pixels."""


class Images(NamedTuple):
    """What is measured on."""

    pixels: Tensor
    targets: Tensor
    training: Tensor
    """Images to take statistics on; none of the validation images."""


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers of a T-CNN without content heads, or of a network of attention alone."""
    found = []
    for module in model.modules():
        if isinstance(module, GPSA2d):
            found.append(Layer(_by_head(module.proj, module.heads), module.head_centres.detach().norm(dim=1)))
        elif isinstance(module, SelfAttention2d):
            weights = _by_head(module.proj.weight, module.heads)
            found.append(Layer(weights, module.summary()[1].detach().norm(dim=1)))
    return found


def _by_head(weight: Tensor, heads: int) -> Tensor:
    return weight.detach().unflatten(1, (heads, -1))


def order(layer: Layer, how: str, lot: int = 0) -> list[int]:
    """The heads of a layer in the order in which they are pruned."""
    if how == "lot":
        return torch.randperm(len(layer.distances), generator=torch.Generator().manual_seed(lot)).tolist()
    by = layer.weights.norm(dim=(0, 2)) if how == "light" else layer.distances
    return by.argsort(descending=how == "far", stable=True).tolist()


def without(model: nn.Module, how: str, heads: int, lot: int = 0) -> nn.Module:
    """A copy of which every layer has lost so many heads: their output weights are 0, as if they were not there."""
    made = copy.deepcopy(model)
    for number, layer in enumerate(layers_of(made)):
        layer.weights[:, order(layer, how, lot + 1000 * number)[:heads]] = 0
    return made


@torch.inference_mode()
def right(model: nn.Module, images: Images) -> Tensor:
    """Which images are classified right, (N,)."""
    with fused(model.eval()):
        found = [model(batch).argmax(1) for batch in images.pixels.split(BATCH)]
    return torch.cat(found) == images.targets


def curve(model: nn.Module, source: nn.Module | None, images: Images, statistics: bool) -> Iterator[dict[str, Any]]:
    """Rows of one network: after so many heads of every layer in an order, and after `tcnn fold --prune`.

    `source` is the CNN of a T-CNN that timm does not know.
    """
    layers = layers_of(model)
    each, whole = layers[0].weights.shape[1], sum(layer.weights.shape[1] for layer in layers)
    before = right(model, images)

    def anew(made: nn.Module) -> dict[str, Any]:
        return {"renewed": renewed(made, images)} if statistics and batch_norms(made) else {}

    yield row("none", 0, before, before, heads=whole, **anew(model))
    for far in DISTANCES:
        try:
            made, report = tcnn.prune(model, far=far, images=images.pixels[:2], source=source)
        except (NothingToConvertError, RequestError) as refusal:
            yield {"order": "command", "far": far, "refused": str(refusal)}
            continue
        reasons = [head.reason for head in report.pruned]
        counted = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
        yield row("command", len(reasons), before, right(made, images), far=far, reasons=counted)
    for how in ORDERS:
        for heads in range(1, each):
            for lot in range(LOTS if how == "lot" else 1):
                made = without(model, how, heads, lot)
                told: dict[str, Any] = {"lot": lot} if how == "lot" else anew(made)
                yield row(how, heads * len(layers), before, right(made, images), **told)


def renewed(model: nn.Module, images: Images) -> float:
    """Accuracy after the statistics of batch normalisation have been taken anew on training images."""
    made = copy.deepcopy(model)
    reestimate_batch_norm(made, images.training.split(BATCH))
    return round(right(made, images).double().mean().item(), 5)


def row(how: str, pruned: int, before: Tensor, after: Tensor, **told: Any) -> dict[str, Any]:
    """What is told of one measurement."""
    found, change = scores.share(int(after.sum()), len(after)), scores.paired(before.numpy(), after.numpy())
    return {
        "order": how, "pruned": pruned, "images": len(after), "top1": round(found.mean, 5),
        "difference": [round(value, 5) for value in change], **told,
    }  # fmt: skip


def picture(results: dict[str, dict[str, Any]]) -> Figure:
    """One panel a network: accuracy by pruned heads in every order, dotted with statistics taken anew."""
    made = style.figure(max(6.6, 4.6 * len(results)), 4.0)
    handles: dict[str, Any] = {}
    for ax, (name, found) in zip(made.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        rows = found["rows"]
        whole = rows[0]["heads"]
        style.axes(ax, found.get("title", name), f"heads pruned of {whole}", "top-1")
        for number, (how, label) in enumerate(ORDERS.items()):
            own = [one for one in rows if one["order"] in ("none", how)]
            line = ax.plot(*means(own, "top1"), color=style.PALETTE[number], marker="o", markersize=3)[0]
            handles[label] = line
            if len(again := [one for one in own if "renewed" in one]) > 1:
                handles["the same, statistics taken anew"] = ax.plot(
                    *means(again, "renewed"), color=style.PALETTE[number], linestyle=":", linewidth=1.3
                )[0]
        command = [one for one in rows if one["order"] == "command" and "top1" in one]
        if command:
            handles["tcnn fold --prune"] = ax.scatter(
                [one["pruned"] for one in command], [one["top1"] for one in command], marker="x", s=36,
                color=style.INK, zorder=3,
            )  # fmt: skip
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylim(bottom=0)
    style.legend(made, list(handles.values()), list(handles), loc="outside lower center", ncols=2)
    return made


def means(rows: Iterable[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Numbers of pruned heads, and the mean of what was found there."""
    found: dict[int, list[float]] = {}
    for one in rows:
        found.setdefault(one["pruned"], []).append(one[key])
    return list(found), [sum(values) / len(values) for values in found.values()]


def read(spec: str, model: nn.Module, count: int, training: int) -> Images:
    """Class-balanced parts of the validation and training images as the network takes them."""
    known = open_dataset(spec, "train")
    data = open_dataset(spec, "validation", class_names=known.class_names)
    data, known = (class_balanced(part, min(1.0, n / len(part)), 0) for part, n in ((data, count), (known, training)))
    transform = transform_for(model)
    pixels, others = (
        torch.stack([transform(part.load(n)[0]) for n in range(len(part))]) for part in (data, known)
    )  # fmt: skip
    return Images(pixels, torch.as_tensor(data.targets), others)


def draw_centres(model: nn.Module, images: Images, file: Path) -> None:
    """Where every head looks, as Cordonnier's Figure 12 has it."""
    size = images.pixels.shape[2], images.pixels.shape[3]
    drawn = centres(tcnn.inspect(model, images=images.pixels[:BATCH], size=size).layers)
    assert drawn is not None
    style.write(drawn, file.with_suffix(""), ("png",), force=True)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    results = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    for given in options.checkpoints:
        name, equals, file = given.partition("=")
        if not equals:
            raise SystemExit(f"{given}: expected NAME=CHECKPOINT")
        source = None if options.network is None else OWN[options.network]()
        model = tcnn.load(file, source=source)
        images = read(options.data, model, options.images, options.statistics or BATCH)
        if options.centres is not None:
            draw_centres(model, images, options.centres)
            continue
        rows = []
        for one in curve(model, source, images, bool(options.statistics)):
            rows.append(one)
            print(name, json.dumps(one), flush=True)
        told = {"hardware": hardware("cpu"), "versions": versions("tcnn", "torch", "timm")}
        results[name] = {"title": options.title or name, "rows": rows, **told}
        with replacing(options.out, force=True) as temporary:
            temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.centres is None:
        style.write(picture(results), options.picture.with_suffix(""), ("png",), force=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", metavar="NAME=CHECKPOINT", help="without any the picture is drawn")
    parser.add_argument("--data", help="a data set with a train and a validation split (docs/data.md)")
    parser.add_argument("--network", choices=OWN, help="the CNN of the checkpoints, where timm does not know it")
    parser.add_argument("--title", help="of the network in the picture")
    parser.add_argument("--images", type=int, default=1000, help="validation images, the same of every class")
    parser.add_argument("--statistics", type=int, default=0, metavar="N", help="training images for statistics anew")
    parser.add_argument("--centres", type=Path, metavar="FILE", help="draw where heads look, and nothing else")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    if options.checkpoints and options.data is None:
        parser.error("--data: needed to measure a checkpoint")
    return options


if __name__ == "__main__":
    main()
