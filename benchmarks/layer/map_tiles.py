"""How long the kernels of materialised attention take on a GPU, by their tiles: what `launches.choose` chooses from.

    python -m benchmarks.layer.map_tiles [--shape SIDExBATCH …] --out FILE

Nine heads of width 56 in bfloat16, replayed as a CUDA graph, so that the host costs nothing. Forward is the table of
positions and the maps; backward the gradients of queries and keys. Which tiles are the fastest differs between GPUs and
versions of Triton; those that do not fit, or whose result is another one, are listed as such.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.layer.gpsa import captured
from benchmarks.reporting import hardware, versions
from benchmarks.timing import timed
from tcnn.layers.triton import launches
from tcnn.layers.triton.launches import Tiles
from tcnn.layers.triton.materialised_inputs import Position, Sizes
from tcnn.layers.triton.tiles import power_of_two

HEADS, WIDTH = 9, 56
SHAPES = ((14, 128), (7, 256), (32, 16))
"""Side of the map, batch."""


def choices(kernel: str, pitch: int) -> Iterator[Tiles]:
    """Tiles that may be worth it."""
    whole = max(16, power_of_two(pitch))
    every = (whole,) if whole <= 256 and kernel != "backward_queries" else (64, 128, 256)
    for queries, keys, warps, stages in itertools.product((16, 32, 64, 128), every, (4, 8), (1, 2)):
        if queries * keys <= 2**14:
            yield Tiles(queries, keys, keys == whole and kernel != "backward_queries", warps, stages)


def works(side: int, batch: int) -> dict[str, Callable[[], list[Tensor]]]:
    """Forward and backward of one layer's maps; both return what they have computed."""
    sizes = Sizes(HEADS, (side,) * 2, (side,) * 2, (side + 2,) * 2, (1, 1), (1, 1), (1, 1), 4 * side + 4, 1.0)
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(torch.bfloat16)

    both, one = 0.5 * drawn(batch, sizes.pitch, 2 * HEADS * WIDTH), torch.ones((), device="cuda")
    position = Position(drawn(HEADS), one, drawn(HEADS), drawn(HEADS, 2), one)
    maps, lse = launches.maps(both, both.new_empty(0), position, sizes)
    upstream = torch.randn_like(maps)

    def backward() -> list[Tensor]:
        return [launches.gradients(both, both.new_empty(0), position, upstream, lse, sizes, moving=False)[0]]

    return {"forward": lambda: list(launches.maps(both, both.new_empty(0), position, sizes)), "backward": backward}


def measure(work: Callable[[], list[Tensor]], kernel: str, tiles: Tiles | None, expected: list[Tensor]) -> Any:
    """Milliseconds with these tiles of one kernel, None for those that are chosen; or why there are none."""
    real = launches.choose

    def choose(name: str, *others: Any) -> Tiles:
        return tiles if tiles is not None and name == kernel else real(name, *others)

    with patch.object(launches, "choose", choose):
        try:
            found = work()
            pairs = zip(found, expected, strict=True)
            if not all(torch.allclose(ours.float(), theirs.float(), rtol=0.05, atol=0.01) for ours, theirs in pairs):
                return "another result"
            replay = captured(work)
            return round(1000 * statistics.median(timed(replay, "cuda", 20) for _ in range(7)), 4)
        except Exception as error:  # a compiler's own: too many registers, too much shared memory
            return type(error).__name__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=[f"{side}x{batch}" for side, batch in SHAPES])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU, found none")
    rows = []
    for side, batch in (map(int, shape.split("x")) for shape in options.shape):
        pitch = -(-side * side // 16) * 16
        for direction, work in works(side, batch).items():
            expected = work()
            of = {"forward": ["forward"], "backward": ["backward_keys"]}[direction]
            if direction == "backward" and pitch > 256:  # else one kernel does both
                of.append("backward_queries")
            rows.append({"map": side, "batch": batch, "kernel": direction, "ms": measure(work, "", None, expected)})
            for kernel in of:
                for tiles in choices(kernel, pitch):
                    row = {"map": side, "batch": batch, "kernel": kernel, **tiles._asdict()}
                    rows.append(row | {"ms": measure(work, kernel, tiles, expected)})
                    print(rows[-1], flush=True)
    found = {"rows": rows, "hardware": hardware("cuda"), "versions": versions("tcnn", "torch", "triton")}
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
