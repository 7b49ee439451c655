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
from machine import fill, processor
from stopwatch import timed
from timm.models import convit
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.layers import GPSA2d
from tcnn.layers.ways import taking

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
SHAPES = ((512, 7, 16), (512, 14, 4), (512, 32, 1))
"""Channels, side of the map, batch."""
MEMORY_SHAPE = (512, 32, 4)
KERNEL = 3
FORMULAS, SHARED, TIMM = "ConViT's formulas", "ConViT's formulas, one W_val", "ConViT in timm"


class ConViT(nn.Module):
    """GPSA as ConViT states it (d'Ascoli et al. 2021, Eq. 3 and 6–8): v_posᵀ r_δ for every pair of pixels, both
    softmaxes, the gated sum, rows divided by their sums, a value matrix for every head. Heads and padding as in a
    T-CNN: one head per tap, and values as wide as X, without which it could be no convolution (T-CNN, Eq. 5).
    """

    shared = False
    """Whether the heads share one value matrix; that is the T-CNN's own saving (there, below Eq. 6)."""

    def __init__(self, channels: int, head_dim: int, strength: float = 1.0) -> None:
        super().__init__()
        self.heads, self.head_dim = KERNEL**2, head_dim
        self.query = nn.Linear(channels, self.heads * head_dim, bias=False)
        self.key = nn.Linear(channels, self.heads * head_dim, bias=False)
        self.value = nn.Linear(channels, channels * (1 if self.shared else self.heads), bias=False)
        self.proj = nn.Linear(self.heads * channels, channels)
        self.gating_param = nn.Parameter(torch.ones(self.heads))
        self.pos_proj = nn.Linear(3, self.heads)
        self.offsets: Tensor | None = None
        taps = torch.cartesian_prod(torch.arange(KERNEL), torch.arange(KERNEL)) - KERNEL // 2
        with torch.no_grad():  # −α‖δ − Δ‖² = −α(‖δ‖² − 2δ·Δ) + const.
            self.pos_proj.weight.copy_(strength * torch.cat((-torch.ones(self.heads, 1), 2 * taps), dim=1))
            self.pos_proj.bias.zero_()

    def _offsets(self, side: int, device: torch.device) -> Tensor:
        """(‖δ‖², δ_row, δ_column) of every query and key, (M, N, 3)."""
        if self.offsets is None or self.offsets.shape[0] != side**2:
            where = torch.arange(side + 2, device=device, dtype=torch.float32)
            keys = torch.cartesian_prod(where, where)
            inner = where[1:-1]
            delta = keys[None] - torch.cartesian_prod(inner, inner)[:, None]
            self.offsets = torch.cat((delta.square().sum(-1, keepdim=True), delta), dim=-1)
        return self.offsets

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        padded = F.pad(x, (1, 1, 1, 1)).flatten(2).transpose(1, 2)
        tokens = x.flatten(2).transpose(1, 2)
        q = self.query(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k = self.key(padded).unflatten(2, (self.heads, -1)).transpose(1, 2)
        content = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(dim=-1)
        position = self.pos_proj(self._offsets(side, x.device).to(x.dtype)).permute(2, 0, 1).softmax(dim=-1)
        gate = torch.sigmoid(self.gating_param).view(1, -1, 1, 1)
        attention = (1 - gate) * content + gate * position
        attention = attention / attention.sum(dim=-1, keepdim=True)
        return self._project(attention, padded).unflatten(2, (side, side))

    def _project(self, attention: Tensor, padded: Tensor) -> Tensor:
        """Maps (B, h, M, N) and pixels (B, N, C) → outputs (B, C, M)."""
        values = self.value(padded).unflatten(2, (1 if self.shared else self.heads, -1)).transpose(1, 2)
        return self.proj((attention @ values).transpose(1, 2).flatten(2)).transpose(1, 2)

    @torch.no_grad()
    def become(self, layer: GPSA2d) -> None:
        """Take a layer's weights."""
        for ours in ("query", "key", "proj"):
            getattr(self, ours).weight.copy_(getattr(layer, ours))
        self.value.weight.copy_(layer.value.repeat(1 if self.shared else self.heads, 1))
        self.proj.bias.copy_(layer.bias)


class SharedConViT(ConViT):
    """The same with one value matrix."""

    shared = True


class TimmConViT(ConViT):
    """The same by timm's own code: positions for every image of the batch, queries for padded pixels, too."""

    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__(channels, head_dim)
        self.theirs = convit.GPSA(self.heads * head_dim, self.heads)
        self.theirs.qk = nn.Linear(channels, 2 * self.heads * head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        padded = F.pad(x, (1, 1, 1, 1)).flatten(2).transpose(1, 2)
        pixels = padded.shape[1]
        if self.theirs.rel_indices.shape[1] != pixels:
            self.theirs.rel_indices = self.theirs.get_rel_indices(pixels)
        maps = self.theirs.get_attention(padded).unflatten(2, (side + 2, side + 2))[:, :, 1:-1, 1:-1].flatten(2, 3)
        return self._project(maps, padded).unflatten(2, (side, side))

    @torch.no_grad()
    def become(self, layer: GPSA2d) -> None:
        """As above; timm's offsets are (column, row, ‖δ‖²)."""
        super().become(layer)
        self.theirs.qk.weight.copy_(torch.cat((layer.query, layer.key)))
        self.theirs.pos_proj.weight.copy_(self.pos_proj.weight[:, [2, 1, 0]])
        self.theirs.pos_proj.bias.copy_(self.pos_proj.bias)


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
        with torch.no_grad(), taking(way):  # type: ignore[arg-type]
            module(x)

    def step() -> None:
        leaf = x.detach().requires_grad_()
        with taking(way):  # type: ignore[arg-type]
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
