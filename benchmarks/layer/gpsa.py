"""What one GPSA layer costs beside the convolution it replaces, beside ConViT's formulation, and beside the arithmetic.

    python -m benchmarks.layer.gpsa [--device cpu|cuda] [--threads 2] [--rounds 15] [--shape CHANNELSxSIDExBATCH …]
                              [--measure times memory growth]

All candidates get the same input, in one run, in turn; reported are medians of the ratios round by round, which hold
when the machine's speed drifts. For inference layers are fused (`tcnn.fuse`). On a GPU everything is bfloat16, and
timed between events on its stream, as it is called and once more replayed as a CUDA graph, where the host costs
nothing. The floor of a candidate is the larger of two times: the multiply-adds that its result needs, at the speed of
the best large matrix product of the same run; and its input, weights and output moved once each, at that of the best
large copy. `floor_share` says how near to it it comes. ConViT is there three times: its formulas; timm's code for
them; and its formulas with what T-CNNs have changed in them, one W_val for all heads. Peak memory is of forward and
backward (CPU: resident memory over what it was before, in a process of its own; GPU: the allocator's). Results go to
`benchmarks/results/gpsa_DEVICE.json`.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tcnn
from benchmarks.layer.convit_layers import KERNEL, ConViT, SharedConViT, TimmConViT
from benchmarks.reporting import fill, hardware, versions
from benchmarks.reporting import layers as table
from benchmarks.timing import Ceilings, ceilings, in_turn, ratio
from tcnn.config import HARD_TEMPERATURE
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
SHAPES = ((512, 7, 16), (512, 14, 4), (512, 32, 1))
"""Channels, side of the map, batch."""
MEMORY_SHAPE = (512, 32, 4)
MEASURES = ("times", "memory", "growth")
FORMULAS, SHARED, TIMM = "ConViT's formulas", "ConViT's formulas, one W_val", "ConViT in timm"


def candidates(channels: int, device: str, dtype: torch.dtype) -> dict[str, tuple[nn.Module, str]]:
    """Every way to do the layer's work, with the backend that is used."""
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, channels, KERNEL, padding=1)
    paper = GPSA2d.from_conv2d(conv, temperature=1.0)
    hard = GPSA2d.from_conv2d(conv)
    named = {
        "convolution": (conv, "auto"),
        "gpsa": (paper, "auto"),
        "gpsa, converted and not yet trained": (hard, "auto"),
        "gpsa, no map kept": (paper, "fused"),
        "gpsa, as the formula is written": (paper, "reference"),
        "gpsa, window:14": (GPSA2d.from_conv2d(conv, temperature=1.0, content="window:14"), "auto"),
        FORMULAS: (ConViT(channels, paper.head_dim), "auto"),
        SHARED: (SharedConViT(channels, paper.head_dim), "auto"),
        TIMM: (TimmConViT(channels, paper.head_dim), "auto"),
    }
    found = {name: (module.to(device, dtype), way) for name, (module, way) in named.items()}
    hard.set_temperature(HARD_TEMPERATURE, hold=True)  # as fine-tuning does before its first step
    return found


def ready(module: nn.Module, way: str, training: bool) -> nn.Module:
    """For inference a layer is fused, as `evaluate` and `export` do, unless the formula is to be computed."""
    if training or way == "reference" or not isinstance(module, GPSA2d):
        return module.train(training)
    return tcnn.fuse(module)


def check(named: dict[str, tuple[nn.Module, str]], x: Tensor) -> float:
    """ConViT's formulation with the layer's weights is the layer: how far apart they are at most, relative L2."""
    layer = named["gpsa"][0]
    assert isinstance(layer, GPSA2d)
    with torch.no_grad():
        ours, errors = layer(x), []
        for name in (FORMULAS, SHARED, TIMM):
            theirs = named[name][0]
            assert isinstance(theirs, ConViT)
            theirs.become(layer)
            errors.append(((ours - theirs(x)).norm() / ours.norm()).item())
        return max(errors)


def multiply_adds(name: str, channels: int, side: int, head_dim: int) -> float:
    """Of one image, forward: what the result needs, not what a candidate happens to do."""
    pixels, heads = side**2, KERNEL**2
    convolution = heads * pixels * channels**2
    if name in ("convolution", "gpsa, converted and not yet trained"):
        return convolution
    # Padding needs nothing, and W_val is one matrix with W_out; a scope makes the content smaller.
    seen = min(14, side) ** 2 if name == "gpsa, window:14" else pixels
    attention = heads * pixels * seen * (head_dim + channels)
    return 2 * pixels * channels * heads * head_dim + attention + convolution


def moved(name: str, shape: tuple[int, int, int], head_dim: int, itemsize: int, training: bool) -> float:
    """Bytes that must be read or written at least: input, weights and output once each; backward the gradient of the
    output, input and weights again, and the gradients of both."""
    channels, side, batch = shape
    attention = name not in ("convolution", "gpsa, converted and not yet trained")
    weights = KERNEL**2 * channels * (channels + (2 * head_dim if attention else 0))
    pixels = batch * side**2 * channels
    return itemsize * ((3 * weights + 5 * pixels) if training else weights + 2 * pixels)


def run(module: nn.Module, x: Tensor, way: str, training: bool) -> Callable[[], object]:
    def inference() -> None:
        with torch.no_grad(), use_backend(way):  # type: ignore[arg-type]
            module(x)

    def step() -> None:
        leaf = x.detach().requires_grad_()
        with use_backend(way):  # type: ignore[arg-type]
            module(leaf).sum().backward()
        module.zero_grad(set_to_none=True)

    return step if training else inference


def captured(work: Callable[[], object]) -> Callable[[], object]:
    """The same work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def measure(
    shape: tuple[int, int, int], options: argparse.Namespace, dtype: torch.dtype, best: Ceilings
) -> list[dict[str, Any]]:
    channels, side, batch = shape
    named = candidates(channels, options.device, dtype)
    x = torch.randn(batch, channels, side, side, device=options.device, dtype=dtype)
    error = check(named, x)
    assert error < (1e-5 if dtype == torch.float32 else 3e-2), f"not the same function: {error}"
    head_dim = int(named["gpsa"][0].head_dim)  # type: ignore[arg-type]
    rows = []
    for training in (False, True):
        works = {name: run(ready(*one, training), x, one[1], training) for name, one in named.items()}
        seconds = in_turn(works, options.device, options.rounds)
        graphs = {} if options.device == "cpu" else {name: captured(one) for name, one in works.items()}
        replayed = in_turn(graphs, options.device, options.rounds)
        for name, times in seconds.items():
            pairs = {against: ratio(times, seconds[against]) for against in ("convolution", FORMULAS, SHARED, TIMM)}
            work = (3 if training else 1) * batch * multiply_adds(name, channels, side, head_dim)
            traffic = moved(name, shape, head_dim, x.itemsize, training)
            rows.append(
                {
                    "channels": channels, "map": f"{side}x{side}", "batch": batch, "name": name,
                    "what": "forward and backward" if training else "forward",
                    "ms": round(1000 * statistics.median(times), 4),
                    "of_convolution": round(pairs["convolution"], 3),
                    "of_convits_formulas": round(pairs[FORMULAS], 3),
                    "of_convits_with_one_value": round(pairs[SHARED], 3),
                    "of_convit_in_timm": round(pairs[TIMM], 3),
                    "floor_share": round(best.seconds(work, traffic) / statistics.median(times), 3),
                    "giga_multiply_adds": round(work / 1e9, 3), "megabytes": round(traffic / 1e6, 2),
                }
            )  # fmt: skip
            if name in replayed:
                rows[-1] |= {
                    "replayed_ms": round(1000 * statistics.median(replayed[name]), 4),
                    "replayed_of_convolution": round(ratio(replayed[name], replayed["convolution"]), 3),
                    "replayed_of_convits_formulas": round(ratio(replayed[name], replayed[FORMULAS]), 3),
                    "replayed_floor_share": round(
                        best.seconds(work, traffic) / statistics.median(replayed[name]), 3
                    ),
                }  # fmt: skip
    return rows


def memory(name: str, device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """MiB that forward and backward hold at once, over weights, gradients and input."""
    channels, side, batch = shape
    module, way = candidates(channels, device, dtype)[name]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x = torch.randn(batch, channels, side, side, device=device, dtype=dtype)
    step = run(module, x[:1, :, :8, :8], way, True)
    step()  # what libraries set up at the first call is not the layer's
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(module, x, way, True)()
        torch.cuda.synchronize()
        return float((torch.cuda.max_memory_allocated() - before) / 2**20)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak from now on
    before = resident("VmRSS")
    run(module, x, way, True)()
    return (resident("VmHWM") - before) / 1024


def resident(field: str) -> float:
    """KiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def growth(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, float]:
    """Time at 64×64 over time at 32×32, forward, and forward and backward, of `window:14`."""
    channels = min(256, options.memory_shape[0])
    module, _ = candidates(channels, options.device, dtype)["gpsa, window:14"]
    maps = {side: torch.randn(1, channels, side, side, device=options.device, dtype=dtype) for side in (32, 64)}
    found = {}
    for training in (False, True):
        works = {str(side): run(ready(module, "auto", training), x, "auto", training) for side, x in maps.items()}
        seconds = in_turn(works, options.device, options.rounds)
        found["forward and backward" if training else "forward"] = round(ratio(seconds["64"], seconds["32"]), 2)
    return found


def memories(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, float]:
    """Of every candidate. What a process on a CPU has held it may hold for ever, so there each has one of its own."""
    names = list(candidates(KERNEL**2 * 8, "cpu", torch.float32))
    work = [(name, options.device, options.memory_shape, dtype) for name in names]
    if options.device != "cpu":
        found = [memory(*one) for one in work]
    else:
        fresh = multiprocessing.get_context("forkserver")
        fresh.set_forkserver_preload(["convit_layers", "tcnn.layers"])
        with fresh.Pool(1, return_freed_memory, (options.threads,), maxtasksperchild=1) as pool:
            found = pool.starmap(memory, work, chunksize=1)
    return {name: round(mib, 1) for name, mib in zip(names, found, strict=True)}


def return_freed_memory(threads: int) -> None:
    """Blocks of more than 64 KiB go back to the system when they are freed."""
    torch.set_num_threads(threads)
    ctypes.CDLL("libc.so.6").mallopt(-3, 65536)


def parsed(text: str) -> tuple[int, int, int]:
    """Channels, side of the map, batch."""
    channels, side, batch = (int(part) for part in text.split("x"))
    if channels // KERNEL**2 % 8:
        raise argparse.ArgumentTypeError(
            f"timm's code needs channels // 9 to be a multiple of 8, as in 512; found {channels}"
        )
    return channels, side, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", action="append", type=parsed, help="CHANNELSxSIDExBATCH; may be repeated")
    parser.add_argument("--memory-shape", type=parsed, default=MEMORY_SHAPE)
    parser.add_argument("--measure", nargs="+", choices=MEASURES, default=MEASURES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.out and set(options.measure) != set(MEASURES):
        parser.error("--measure: a part of the measurements needs a file of its own, --out FILE")
    torch.set_num_threads(options.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    result: dict[str, Any] = {
        "device": options.device, "dtype": str(dtype).removeprefix("torch."), "threads": options.threads,
        "hardware": hardware(options.device), "versions": versions("tcnn", "torch"),
    }  # fmt: skip
    if "times" in options.measure:
        best = ceilings(options.device, dtype)
        result |= best.record()
        result["rows"] = [row for one in options.shape or SHAPES for row in measure(one, options, dtype, best)]
        print(table(result))
    if "memory" in options.measure:
        used = memories(options, dtype)
        result |= {
            "memory_shape": dict(zip(("channels", "side", "batch"), options.memory_shape, strict=True)),
            "memory_mib": used, "memory_of_convits_formulas": round(used["gpsa"] / used[FORMULAS], 3),
        }  # fmt: skip
        print(f"memory, MiB: {used}; the layer's is {result['memory_of_convits_formulas']} of ConViT's")
    if "growth" in options.measure:
        result["growth_32_to_64"] = growth(options, dtype)
        print(f"from 32x32 to 64x64, window:14: {result['growth_32_to_64']}")
    out = options.out or RESULTS / f"gpsa_{options.device}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.device == "cpu" and not options.out:
        fill(PAGE, "gpsa", table(result))


if __name__ == "__main__":
    main()
