"""What one GPSA layer costs beside the convolution it replaces, beside ConViT's formulation, and beside the arithmetic.

    python benchmarks/gpsa.py [--device cpu|cuda] [--threads 2] [--rounds 15] [--shape CHANNELSxSIDExBATCH …]

All candidates get the same input, in one run, in turn; reported are medians of the ratios round by round, which hold
when the machine's speed drifts. The floor of a candidate is the multiply-adds that its result needs at the speed of the
best large matrix product of the same run; `floor_share` says how near to that it comes. ConViT is there three times:
its formulas; timm's code for them; and its formulas with what T-CNNs have changed in them, one W_val for all heads.
Peak memory is of forward and backward, each in a process of its own (CPU: resident memory over what it was before;
GPU: the allocator's). Results go to `benchmarks/results/gpsa_DEVICE.json`.
"""

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from convit_layers import KERNEL, ConViT, SharedConViT, TimmConViT
from machine import fill, processor
from stopwatch import timed
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.backends import use_backend

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
SHAPES = ((512, 7, 16), (512, 14, 4), (512, 32, 1))
"""Channels, side of the map, batch."""
MEMORY_SHAPE = (512, 32, 4)
FORMULAS, SHARED, TIMM = "ConViT's formulas", "ConViT's formulas, one W_val", "ConViT in timm"


def candidates(channels: int, device: str, dtype: torch.dtype) -> dict[str, tuple[nn.Module, str]]:
    """Every way to do the layer's work, with the way that `TCNN_ATTENTION` is set to."""
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, channels, KERNEL, padding=1)
    paper = GPSA2d.from_conv2d(conv, temperature=1.0)
    hard = GPSA2d.from_conv2d(conv)
    named = {
        "convolution": (conv, "auto"),
        "gpsa": (paper, "auto"),
        "gpsa, converted and not yet trained": (hard, "auto"),
        "gpsa, as the formula is written": (paper, "reference"),
        "gpsa, window:14": (GPSA2d.from_conv2d(conv, temperature=1.0, content="window:14"), "auto"),
        FORMULAS: (ConViT(channels, paper.head_dim), "auto"),
        SHARED: (SharedConViT(channels, paper.head_dim), "auto"),
        TIMM: (TimmConViT(channels, paper.head_dim), "auto"),
    }
    return {name: (module.to(device, dtype), way) for name, (module, way) in named.items()}


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


def peak(device: str, dtype: torch.dtype) -> float:
    """Multiply-adds per second of the best of some large matrix products."""
    best = 0.0
    for size in (1024, 2048) if device == "cpu" else (4096, 8192):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        seconds = min(timed(lambda a=a, b=b: a @ b, device) for _ in range(8))  # type: ignore[misc]
        best = max(best, size**3 / seconds)
    return best


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


def measure(shape: tuple[int, int, int], options: argparse.Namespace, dtype: torch.dtype) -> list[dict[str, Any]]:
    channels, side, batch = shape
    named = candidates(channels, options.device, dtype)
    x = torch.randn(batch, channels, side, side, device=options.device, dtype=dtype)
    error = check(named, x)
    assert error < (1e-5 if dtype == torch.float32 else 3e-2), f"not the same function: {error}"
    speed = peak(options.device, dtype)
    rows = []
    for training in (False, True):
        works = {name: run(module.train(training), x, way, training) for name, (module, way) in named.items()}
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for number in range(options.rounds + 2):
            for name, work in works.items():
                taken = timed(work, options.device)
                if number >= 2:
                    seconds[name].append(taken)
        for name, times in seconds.items():
            pairs = {
                against: statistics.median(one / other for one, other in zip(times, seconds[against], strict=True))
                for against in ("convolution", FORMULAS, SHARED, TIMM)
            }
            head_dim = named["gpsa"][0].head_dim
            floor = (3 if training else 1) * batch * multiply_adds(name, channels, side, int(head_dim)) / speed  # type: ignore[arg-type]
            rows.append(
                {
                    "channels": channels, "map": f"{side}x{side}", "batch": batch, "name": name,
                    "what": "forward and backward" if training else "forward",
                    "ms": round(1000 * statistics.median(times), 2),
                    "of_convolution": round(pairs["convolution"], 3),
                    "of_convits_formulas": round(pairs[FORMULAS], 3),
                    "of_convits_with_one_value": round(pairs[SHARED], 3),
                    "of_convit_in_timm": round(pairs[TIMM], 3),
                    "floor_share": round(floor / statistics.median(times), 3),
                }
            )  # fmt: skip
    return rows


def memory(name: str, device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """MiB that forward and backward hold at once, over weights, gradients and input. Runs in a process of its own."""
    channels, side, batch = shape
    module, way = candidates(channels, device, dtype)[name]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x = torch.randn(batch, channels, side, side, device=device, dtype=dtype)
    small = x[:1, :, :8, :8]
    step = run(module, small, way, True)
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


def growth(options: argparse.Namespace, dtype: torch.dtype, channels: int = 256) -> dict[str, float]:
    """Time at 64×64 over time at 32×32, forward, and forward and backward, of `window:14`."""
    module, _ = candidates(channels, options.device, dtype)["gpsa, window:14"]
    maps = [torch.randn(1, channels, side, side, device=options.device, dtype=dtype) for side in (32, 64)]
    found = {}
    for training in (False, True):
        works = [run(module.train(training), x, "auto", training) for x in maps]
        pairs = [[timed(work, options.device) for work in works] for _ in range(options.rounds + 2)][2:]
        found["forward and backward" if training else "forward"] = round(
            statistics.median(large / small for small, large in pairs), 2
        )
    return found


def memories(options: argparse.Namespace) -> dict[str, float]:
    """Of every candidate, each measured in a fresh process."""
    found = {}
    for name in candidates(8, "cpu", torch.float32):
        command = [sys.executable, __file__, "--memory-of", name, "--device", options.device]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = round(float(done.stdout.strip().splitlines()[-1]), 1)
    return found


def table(result: dict[str, Any]) -> str:
    """The rows of docs/speed.md."""
    lines = [
        "| channels, map, batch | | layer | ms | ÷ convolution | ÷ ConViT | ÷ ConViT, one W_val | ÷ timm's | floor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = (
            f"{row['channels']}, {row['map']}, {row['batch']}", row["what"], row["name"], f"{row['ms']:.1f}",
            f"{row['of_convolution']:.2f}", f"{row['of_convits_formulas']:.2f}",
            f"{row['of_convits_with_one_value']:.2f}", f"{row['of_convit_in_timm']:.2f}", f"{row['floor_share']:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", action="append", help="CHANNELSxSIDExBATCH; may be repeated")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    if options.memory_of:
        if options.device == "cpu":  # blocks of more than 64 KiB go back to the system when they are freed
            ctypes.CDLL("libc.so.6").mallopt(-3, 65536)
        print(memory(options.memory_of, options.device, MEMORY_SHAPE, dtype))
        return
    given = [tuple(int(part) for part in shape.split("x")) for shape in options.shape or ()]
    shapes: list[tuple[int, int, int]] = given or list(SHAPES)  # type: ignore[assignment]
    for channels, *_ in shapes:
        if channels // KERNEL**2 % 8:
            parser.error(f"--shape: timm's code needs channels // 9 to be a multiple of 8, as in 512; found {channels}")
    rows = [row for shape in shapes for row in measure(shape, options, dtype)]
    for row in rows:
        print(*(f"{value!s:>{36 if key == 'name' else 9}}" for key, value in row.items()))
    used = memories(options)
    hardware = processor() if options.device == "cpu" else torch.cuda.get_device_name()
    result = {
        "device": options.device, "dtype": str(dtype).removeprefix("torch."), "threads": options.threads, "rows": rows,
        "memory_shape": dict(zip(("channels", "side", "batch"), MEMORY_SHAPE, strict=True)), "memory_mib": used,
        "memory_of_convits_formulas": round(used["gpsa"] / used[FORMULAS], 3),
        "growth_32_to_64": growth(options, dtype),
        "multiply_adds_per_second": round(peak(options.device, dtype)), "hardware": hardware,
        "versions": {name: version(name) for name in ("tcnn", "torch")},
    }  # fmt: skip
    out = options.out or RESULTS / f"gpsa_{options.device}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.device == "cpu" and not options.out:
        fill(PAGE, "gpsa", table(result))
    print(f"memory, MiB: {used}; the layer's is {result['memory_of_convits_formulas']} of ConViT's")
    print(f"from 32x32 to 64x64, window:14: {result['growth_32_to_64']}")


if __name__ == "__main__":
    main()
