"""Which library multiplies faster on this processor, the BLAS or oneDNN: for single products, and for a whole layer.

    python -m benchmarks.layer.products [--threads 2] [--rounds 9] [--out FILE]

Products are those of a layer of 512 channels with nine heads on eight images of 14×14, forward and for gradients, in
multiply-adds per second. Layers, at several batches, are compared with the convolution, in turn, as ratios round by
round: `tcnn/layers/terms/products.py` decides by processor which library is called, and both ways are forced here.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.layer.gpsa import candidates, ready, run
from benchmarks.reporting import hardware, versions
from benchmarks.timing import in_turn, ratio
from tcnn.layers.terms import products
from tcnn.processes import keep_freed_memory

RESULTS = Path(__file__).parents[1] / "results" / "products_cpu.json"
CHANNELS, HEADS, IMAGES, QUERIES, KEYS = 512, 9, 8, 196, 200
LAYERS = ((14, (1, 4, 8, 16, 32)), (7, (4, 16, 64)))
"""Side of the map, batches."""


def single(rounds: int) -> list[dict[str, Any]]:
    """Every product by both libraries."""
    maps, values = torch.rand(IMAGES, QUERIES * HEADS, KEYS), torch.randn(IMAGES, KEYS, CHANNELS)
    mixed, proj = torch.randn(IMAGES, QUERIES * HEADS, CHANNELS), torch.randn(CHANNELS, HEADS * CHANNELS)
    rows, upstream = mixed.view(IMAGES * QUERIES, -1), torch.randn(IMAGES * QUERIES, CHANNELS)
    many = {
        "maps and values": (maps, values), "gradient of the maps": (mixed, values.transpose(1, 2)),
        "gradient of the values": (maps.transpose(1, 2), mixed),
    }  # fmt: skip
    one = {
        "output projection": (rows, proj.t()), "gradient of its input": (upstream, proj),
        "gradient of W_out": (upstream.t(), rows),
    }  # fmt: skip
    found = []
    for name, (a, b) in {**many, **one}.items():
        works: dict[str, Callable[[], object]] = {"BLAS": lambda a=a, b=b: a @ b}  # type: ignore[misc]
        if name in many:
            works["oneDNN"] = lambda a=a, b=b: [products._multiply(x, y.t()) for x, y in zip(a, b, strict=True)]  # type: ignore[misc]
        else:
            works["oneDNN"] = lambda a=a, b=b: products._multiply(a, b.t())  # type: ignore[misc]
        work = a.numel() * b.shape[-1]
        seconds = in_turn(works, "cpu", rounds)
        speeds = {library: round(work / statistics.median(times)) for library, times in seconds.items()}
        found.append({"product": name, "multiply_adds_per_second": speeds})
        print(found[-1], flush=True)
    return found


def layers(rounds: int) -> list[dict[str, Any]]:
    """A layer beside its convolution, its single products by either library."""
    named, found = candidates(CHANNELS, "cpu", torch.float32), []
    for side, batches in LAYERS:
        for batch in batches:
            x = torch.randn(batch, CHANNELS, side, side)
            for training in (False, True):
                layer, convolution = (
                    run(ready(*named[name], training), x, named[name][1], training) for name in ("gpsa", "convolution")
                )

                def by(library: str, layer: Callable[[], object] = layer) -> Callable[[], object]:
                    def work() -> None:
                        with (
                            patch.object(products, "blas_is_intels_own", lambda: library == "BLAS"),
                            patch.object(products, "blas_lacks_avx512", lambda: False),
                        ):
                            layer()

                    return work

                works = {"convolution": convolution, "BLAS": by("BLAS"), "oneDNN": by("oneDNN")}
                seconds = in_turn(works, "cpu", rounds)
                row: dict[str, Any] = {"map": side, "batch": batch, "what": "training" if training else "inference"}
                row["ms"] = {name: round(1000 * statistics.median(times), 2) for name, times in seconds.items()}
                row["by_convolution"] = {
                    name: round(ratio(seconds[name], seconds["convolution"]), 3) for name in ("BLAS", "oneDNN")
                }
                row["blas_by_onednn"] = round(ratio(seconds["BLAS"], seconds["oneDNN"]), 3)
                found.append(row)
                print(row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    result = {
        "threads": options.threads, "products": single(options.rounds), "layers": layers(options.rounds),
        "hardware": hardware("cpu"), "versions": versions("tcnn", "torch"),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
