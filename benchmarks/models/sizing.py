"""GPU memory that training takes, computed: by model, way to convert, resolution, batch and precision.

    python -m benchmarks.models.sizing            # writes results/sizing.json and the table of docs/scaling.md
    python -m benchmarks.models.sizing --page     # fills the table from the kept results

Nothing runs on a GPU, and nothing is computed but shapes: models, inputs and the step are fake tensors. Counted are

- parameters, gradients and AdamW's two moments: 16 bytes a parameter, buffers besides;
- activations: every storage that autograd keeps for the backward pass, each counted once. The layers compute as they do
  once heads have left their taps (τ = 1), in parts where the maps are large;
- not counted: what cuDNN works with, what the allocator loses between blocks, the CUDA context: `SPARE` stands for it.

bf16 is autocast, as `--set amp=bfloat16` does it: parameters and moments stay float32.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tcnn

RESULTS = Path(__file__).parents[1] / "results" / "sizing.json"
PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
MODELS = ("resnet18", "resnet50", "resnet50d", "resnet101")
WAYS = ("cnn", "keep", "remove")
SIZES = (224, 320, 384)
BATCHES = (16, 32, 64, 128, 256)
PRECISIONS = {"float32": None, "bf16": torch.bfloat16}
GB = 10**9
SPARE = 2 * GB
"""For the CUDA context and what libraries work with; a rough figure, not a measured one."""


def rows() -> Iterator[dict[str, Any]]:
    """One row for each model, way, size and precision."""
    for name in MODELS:
        for way in WAYS:
            model = timm.create_model(name)
            if way != "cnn":
                model, _ = tcnn.convert(model, tcnn.ConversionConfig(stride=way, temperature=1.0))
            fake = FakeTensorMode()
            model = shapes(model, fake).train()
            with fake:
                held = fixed(model)
                for size in SIZES:
                    for precision, dtype in PRECISIONS.items():
                        kept = {batch: activations(model, batch, size, dtype) for batch in BATCHES}
                        yield {
                            "model": name if way == "cnn" else f"t_{name}", "stride": "" if way == "cnn" else way,
                            "size": size, "precision": precision, "fixed_bytes": held,
                            "activation_bytes": kept,
                        }  # fmt: skip


def shapes(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """The model with fake parameters and buffers."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(fake.from_tensor(parameter.data))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake.from_tensor(buffer)
    return model


def fixed(model: nn.Module) -> int:
    """Bytes of parameters, gradients, AdamW's moments, and buffers."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * parameters + sum(b.numel() * b.element_size() for b in model.buffers())


def activations(model: nn.Module, batch: int, size: int, dtype: torch.dtype | None) -> int:
    """Bytes that autograd keeps between forward and backward for a batch of square images, parameters apart."""
    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = tensor  # held, so that no other storage gets its address
        return tensor

    images, labels = torch.empty(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=dtype is not None),
    ):
        loss = nn.functional.cross_entropy(model(images), labels)  # kept alive, and with it all that it needs
    del loss
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def gigabytes(row: dict[str, Any], batch: int) -> float:
    """What a GPU must have for this batch."""
    return (row["fixed_bytes"] + row["activation_bytes"][str(batch)] + SPARE) / GB


def table(results: dict[str, Any]) -> str:
    """The rows of docs/scaling.md."""
    lines = ["| model | `--stride` | pixels | precision | " + " | ".join(f"batch {b}" for b in BATCHES) + " |"]
    lines.append("|---" * (4 + len(BATCHES)) + "|")
    for row in results["rows"]:
        cells = [f"`{row['model']}`", row["stride"], str(row["size"]), row["precision"]]
        cells += [f"{gigabytes(row, batch):.1f}" for batch in BATCHES]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def fill(page: str, results: dict[str, Any]) -> str:
    """The page with this table behind its mark."""
    return re.sub(r"(<!-- sizing -->\n)(?:\|.*\n)*", lambda found: found[1] + table(results), page)


def main() -> None:
    """Compute, write, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="do not compute, fill the page from the kept results")
    if not parser.parse_args().page:
        found = []
        for row in rows():
            print(json.dumps(row), file=sys.stderr)
            found.append(row)
        versions = {name: version(name) for name in ("tcnn", "torch", "timm")}
        RESULTS.write_text(json.dumps({"spare_bytes": SPARE, "rows": found, "versions": versions}, indent=2) + "\n")
    PAGE.write_text(fill(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
