"""Images per second of whole networks, for inference and for a training step, side by side in one run.

    python -m benchmarks.models.throughput [--device cpu|cuda] [--threads 2] [--batch 4] [--rounds 9] [--size 224]
                                    [--groups stride-removed stride-kept …] [--compile] [--graphs] [--transparent]

Every network is run in turn, round by round; ratios are medians over the rounds. The pairs that matter: a T-CNN of the
paper (stride removed, τ = 1) beside the same CNN without its stride; a conversion that has not been trained beside its
CNN. Beside them timm's own networks with attention, each with the network that it is a variant of. On a GPU everything
is bfloat16 and channels-last, and timed between events on its stream; `--compile` compiles every network, `--graphs`
replays what was compiled as CUDA graphs (`mode="reduce-overhead"`), where the host costs nothing, `--transparent` lets
the compiler see what is in an attention layer's operators (`tcnn/layers/triton/custom_operator.py`). The floor of a
network is the larger of two times: its multiply-adds at the speed of the best large matrix product of the same run; and
what its convolutions, matrices and attention layers read and write, each once, at that of the best large copy.
Results go to `benchmarks/results/throughput_DEVICE.json`.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tcnn
from benchmarks.reporting import fill, hardware, versions
from benchmarks.reporting import networks as table
from benchmarks.timing import Ceilings, ceilings, in_turn, ratio
from tcnn.conversion.surgery import without_stride
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


class Entry(NamedTuple):
    """One network of the comparison."""

    make: Callable[[], nn.Module]
    against: str | None = None
    """The network that it is compared with, of the same group."""
    size: int | None = None
    """Pixels, where it is made for one size."""


def groups(base: str) -> dict[str, dict[str, Entry]]:
    """What is measured together, by name; every ratio is within a group."""

    def cnn() -> nn.Module:
        torch.manual_seed(0)
        return timm.create_model(base)

    def beside(name: str, against: str, size: int) -> dict[str, Entry]:
        """A network of timm's that attends, and the one that it is a variant of."""
        return {
            against: Entry(lambda: timm.create_model(against), size=size),
            name: Entry(lambda: timm.create_model(name), against, size),
        }

    plain = f"{base}, stride removed"
    return {
        "stride-removed": {
            plain: Entry(lambda: without_stride(cnn())),
            f"T-{base}: stride removed, τ = 1": Entry(
                lambda: tcnn.convert(cnn(), stride="remove", temperature=1.0).model, plain
            ),
        },
        "stride-kept": {
            base: Entry(cnn),
            f"T-{base}: stride kept, τ = 1": Entry(lambda: tcnn.convert(cnn(), temperature=1.0).model, base),
            f"{base} converted, not yet trained": Entry(lambda: tcnn.convert(cnn()).model, base),
        },
        "botnet": beside("botnet26t_256", "resnet26t", 256),
        "convit": beside("convit_small", "deit_small_patch16_224", 224),
        "halonet": beside("halonet26t", "resnet26t", 256),
        "lambda": beside("lambda_resnet26t", "resnet26t", 256),
    }


class Work(NamedTuple):
    """What one image costs, forward."""

    multiply_adds: float
    traffic: int
    """Numbers that the layers with matrices read and write, without their matrices."""
    weights: int
    """Numbers that their matrices hold."""


def work(model: nn.Module, size: int) -> Work:
    """With the dense attention, as in training: W_val is a product of its own."""
    traffic = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal traffic
        traffic += inputs[0].numel() + output.numel()

    own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
    with_matrices = [name for name, parameters in own.items() if any(p.dim() > 1 for p in parameters)]
    handles = [
        model.get_submodule(name).register_forward_hook(count)
        for name in with_matrices
        if not any(True for _ in model.get_submodule(name).children())
    ]
    with FlopCounterMode(display=False) as counter, torch.enable_grad(), use_backend("dense"):
        model(torch.randn(1, 3, size, size))
    for handle in handles:
        handle.remove()
    weights = sum(p.numel() for parameters in own.values() for p in parameters if p.dim() > 1)
    return Work(counter.get_total_flops() / 2, traffic, weights)


def floor(found: Work, batch: int, itemsize: int, training: bool, best: Ceilings) -> float:
    """Seconds; the two gradients of a product cost as much as the product, each."""
    bytes = itemsize * (batch * found.traffic + found.weights)
    return (3 if training else 1) * best.seconds(batch * found.multiply_adds, bytes)


def prepared(model: nn.Module, training: bool) -> nn.Module:
    """As it runs: a T-CNN fused for inference, and where nothing has moved it, held in the hard limit for training."""
    layers = [module for module in model.modules() if isinstance(module, GPSA2d)]
    if layers and not training:
        return tcnn.fuse(model)
    for layer in layers:
        layer.set_temperatures(float(layer.gate_temperature), float(layer.position_temperature), hold=True)
    return model.train(training)


def compiled(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    """The model as it is measured, compiled if that is asked for."""
    if not options.compile:
        return model
    mode = {"mode": "reduce-overhead"} if options.graphs else {}
    found: nn.Module = torch.compile(model, backend=options.compile, dynamic=False, **mode)
    return found


def step(model: nn.Module, x: Tensor, training: bool) -> Callable[[], object]:
    def inference() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            model(x)

    def update() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        model(x).sum().backward()
        model.zero_grad()

    return update if training else inference


def measure(entries: dict[str, Entry], options: argparse.Namespace, best: Ceilings) -> list[dict[str, Any]]:
    """The rows of a group: inference, then training steps."""
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    sizes = {name: entry.size or options.size for name, entry in entries.items()}
    models = {name: entry.make().eval() for name, entry in entries.items()}
    cost = {name: work(model, sizes[name]) for name, model in models.items()}
    inputs = {}
    for name, model in models.items():
        model.to(options.device, dtype, memory_format=layout)  # type: ignore[call-overload]
        x = torch.randn(options.batch, 3, sizes[name], sizes[name])
        inputs[name] = x.to(options.device, dtype, memory_format=layout)
    rows = []
    for training in (False, True):
        torch.compiler.reset()
        works = {}
        for name, model in models.items():
            works[name] = step(compiled(prepared(model, training), options), inputs[name], training)
        seconds = in_turn(works, options.device, options.rounds)
        for name, times in seconds.items():
            middle = statistics.median(times)
            least = floor(cost[name], options.batch, inputs[name].itemsize, training, best)
            row: dict[str, Any] = {
                "network": name, "what": "training step" if training else "inference",
                "compiled": bool(options.compile), "graphs": options.graphs, "transparent": options.transparent,
                "size": sizes[name],
                "images_per_second": round(options.batch / middle, 2),
                "giga_multiply_adds": round(cost[name].multiply_adds / 1e9, 2),
                "megabytes": round(inputs[name].itemsize * (cost[name].traffic + cost[name].weights) / 1e6, 2),
                "floor_share": round(least / middle, 3),
            }  # fmt: skip
            if against := entries[name].against:
                row |= {"against": against, "ratio": round(ratio(seconds[against], times), 3)}
                row["ratio_of_multiply_adds"] = round(cost[against].multiply_adds / cost[name].multiply_adds, 3)
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="resnet50")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--groups", nargs="+", choices=groups(""), default=list(groups("")), help="default: all")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="default: inductor")
    parser.add_argument("--graphs", action="store_true", help="with --compile: replay CUDA graphs")
    parser.add_argument("--transparent", action="store_true", help="with --compile: operators that compilers look into")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.graphs and options.compile != "inductor":
        parser.error("--graphs: CUDA graphs are made by the backend inductor, expected --compile beside it")
    if options.transparent and not options.compile:
        parser.error("--transparent: only a compiler looks into operators, expected --compile beside it")
    os.environ["TCNN_TRANSPARENT_OPERATORS"] = "1" if options.transparent else "0"
    if options.channels_last is None:
        options.channels_last = options.device != "cpu"
    torch.set_num_threads(options.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    best = ceilings(options.device, dtype)
    known = groups(options.base)
    rows = [row for name in options.groups for row in measure(known[name], options, best)]
    result = {
        "device": options.device, "dtype": str(dtype).removeprefix("torch."), "batch": options.batch,
        "channels_last": options.channels_last, "threads": options.threads, **best.record(), "rows": rows,
        "hardware": hardware(options.device), "versions": versions("tcnn", "torch", "timm"),
    }  # fmt: skip
    out = options.out or RESULTS / f"throughput_{options.device}.json"
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.device == "cpu" and not options.out:
        fill(PAGE, "throughput", table(result))


if __name__ == "__main__":
    main()
