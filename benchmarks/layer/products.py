"""Which library multiplies faster on this processor, the BLAS or oneDNN: for single products, and for a whole layer.

    python -m benchmarks.layer.products [--threads 2] [--rounds 9] [--out FILE] [--measure products layers bare]

Products are those of a layer of 512 channels with nine heads on eight images of 14×14, forward and for gradients, in
multiply-adds per second. Layers, at several batches, are compared with the convolution, in turn, as ratios round by
round: `tcnn/layers/terms/products.py` decides by processor which library is called, and both ways are forced here.
What is left to be gained shows in the bare products of a training step: `torch.mm` and `torch.bmm` one after the other,
into memory that is there already, with no softmax and no copy between them, also beside the convolution.
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


def bare(rounds: int) -> list[dict[str, Any]]:
    """The products of a training step and nothing else, beside the convolution and the layer; maps of 14×14."""
    named, found = candidates(CHANNELS, "cpu", torch.float32), []
    for batch in LAYERS[0][1]:
        x = torch.randn(batch, CHANNELS, 14, 14)
        layer, convolution = (
            run(ready(*named[name], True), x, named[name][1], True) for name in ("gpsa", "convolution")
        )
        works = {"convolution": convolution, "layer": layer, "bare products": step_of_products(batch)}
        seconds = in_turn(works, "cpu", rounds)
        found.append(
            {
                "map": 14, "batch": batch,
                "ms": {name: round(1000 * statistics.median(times), 2) for name, times in seconds.items()},
                "by_convolution": {
                    name: round(ratio(seconds[name], seconds["convolution"]), 3) for name in ("layer", "bare products")
                },
            }
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def step_of_products(batch: int) -> Callable[[], object]:
    """All products of a training step at 14×14, forward and for gradients: `torch.mm` and `torch.bmm` alone.

    Images are cut as the layer cuts them, so that what one product writes the next finds in a cache.
    """
    wide, part = CHANNELS // HEADS, min(batch, 2**23 // (QUERIES * HEADS * CHANNELS))
    part = part if batch <= part else part // 2
    tokens, both = torch.randn(batch * KEYS, CHANNELS), torch.randn(2 * HEADS * wide, CHANNELS)
    value, proj = torch.randn(CHANNELS, CHANNELS), torch.randn(CHANNELS, HEADS * CHANNELS)
    query, key = torch.randn(part * HEADS, QUERIES, wide), torch.randn(part * HEADS, KEYS, wide)
    values, maps = torch.randn(part, KEYS, CHANNELS), torch.rand(part, QUERIES * HEADS, KEYS)
    upstream, mixed = torch.randn(part * QUERIES, CHANNELS), torch.empty(part, QUERIES * HEADS, CHANNELS)
    rows, logits = mixed.view(part * QUERIES, -1), torch.empty(part * HEADS, QUERIES, KEYS)
    of_both, of_values = torch.empty(len(tokens), len(both)), torch.empty(len(tokens), CHANNELS)
    of_proj, of_both_weights, of_value = torch.empty_like(proj), torch.empty_like(both), torch.empty_like(value)
    of_query, of_key, of_part = torch.empty_like(query), torch.empty_like(key), torch.empty_like(values)
    out, of_maps, of_tokens = torch.empty_like(upstream), torch.empty_like(maps), torch.empty_like(tokens)

    def forward() -> None:
        torch.mm(tokens, both.t(), out=of_both)
        torch.mm(tokens, value, out=of_values)
        for _ in range(0, batch, part):
            torch.bmm(query, key.transpose(1, 2), out=logits)
            torch.bmm(maps, values, out=mixed)
            torch.mm(rows, proj.t(), out=out)

    def step() -> None:
        forward()
        for _ in range(0, batch, part):
            torch.mm(upstream.t(), rows, out=of_proj)
            torch.mm(upstream, proj, out=rows)
            torch.bmm(mixed, values.transpose(1, 2), out=of_maps)
            torch.bmm(maps.transpose(1, 2), mixed, out=of_part)
            torch.bmm(logits, key, out=of_query)
            torch.bmm(logits.transpose(1, 2), query, out=of_key)
        torch.mm(of_both.t(), tokens, out=of_both_weights)
        torch.mm(of_values.t(), tokens, out=of_value)
        torch.mm(of_values, value, out=of_tokens)
        of_tokens.addmm_(of_both, both)

    return step


MEASURES = {"products": single, "layers": layers, "bare": bare}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", nargs="+", choices=MEASURES, default=list(MEASURES))
    options = parser.parse_args()
    if options.out == RESULTS and set(options.measure) != set(MEASURES):
        parser.error("--measure: a part of the measurements needs a file of its own, --out FILE")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    found = {name: measure(options.rounds) for name, measure in MEASURES.items() if name in options.measure}
    result = {"threads": options.threads, **found, "hardware": hardware("cpu"), "versions": versions("tcnn", "torch")}
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
