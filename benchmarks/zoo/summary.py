"""docs/zoo.md from the rows of zoo.csv."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.zoo.check import FAILED, NOT_RUN, REFUSED, VERIFIED, Row

STATUSES = (VERIFIED, REFUSED, FAILED, NOT_RUN)

INTRODUCTION = """\
# timm's zoo, converted

Every model in `timm.list_models()`, converted with the defaults of `tcnn.convert` and verified. This page is generated
from [`benchmarks/results/zoo.csv`](../benchmarks/results/zoo.csv), which has one row per model.

    python -m benchmarks.zoo.sweep                  # models without a row; --shard I/N for a part of them
    python -m benchmarks.zoo.sweep --redo failed    # repeat some of them
    python -m benchmarks.zoo.sweep --summary        # write this page

Every model has one of four results:

- **verified**: the model was built with random weights, converted, and compared with its source by `tcnn.verify`, with
  random scales and shifts in its normalisation layers and matching statistics. Every replaced layer was compared on
  noise and on its actual input, and the logits were compared end to end. All relative errors (the larger of L2 and
  maximum) are at most 1e-5 in float32 and 1e-10 in float64. Where rounding in the source's own float32 logits exceeds
  this, twice that rounding error is allowed (`convmixer_1536_20`, with twenty layers in a row). The *drift* is the
  difference of the same logits at τ = 1. It must be above zero; otherwise the logits would not reveal a wrong layer.
- **refused**: there is nothing to convert in the last stage; the reason is given.
- **failed**: a traceback, or an error above the tolerance.
- **not run**: the model needs more memory than the run was allowed, which its row states. It never counts as passed.

The images are the smallest squares that the model accepts, on which the same convolutions are selected as at the
model's own size and every one of them reads a map of at least 4×4 pixels. A batch is two images of noise. Models with
standardised filters are checked in float64 by converting a float64 source, because a baked filter is rounded to the
dtype of its weights.
"""


def summarise(rows: Iterable[Row], machine: Path, page: Path) -> None:
    """Write the page: counts, a table of families, and every model that was not verified with its reason."""
    rows = sorted(rows)
    text = "\n".join(
        [INTRODUCTION, _machine(machine, rows), _counts(rows), _families(rows), _refusals(rows), _rest(rows)]
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _machine(path: Path, rows: list[Row]) -> str:
    versions = ", ".join(
        f"{package} {' and '.join(sorted({getattr(row, package) for row in rows}))}"
        for package in ("tcnn", "timm", "torch")
    )
    machine = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    hardware = "; ".join(f"{key}: {value}" for key, value in machine.items())
    return f"Versions: {versions}. {hardware}{'.' if hardware else ''}\n"


def _counts(rows: list[Row]) -> str:
    counts = Counter(row.status for row in rows)
    verified = [row for row in rows if row.status == VERIFIED]
    lines = ["## Result\n", "| status | models |", "|---|---:|"]
    lines += [f"| {status} | {counts[status]} |" for status in STATUSES]
    lines += [f"| **all** | **{len(rows)}** |", ""]
    if verified:
        lines.append(
            f"{sum(int(row.layers) for row in verified)} convolutions in {len(verified)} models were replaced. The "
            f"largest error of the logits is {_worst(verified, 'error32')} in float32 and "
            f"{_worst(verified, 'error64')} in float64; that of a layer is {_worst(verified, 'layer32')} and "
            f"{_worst(verified, 'layer64')}. The drift at τ = 1 has a median of {_median(verified)} and a minimum of "
            f"{min(float(row.drift) for row in verified):.1e}. The lowest agreement of the top-1 classes is "
            f"{min(float(row.top1_agreement) for row in verified):.0%}.\n"
        )
    notes = [row for row in verified if row.reason]
    lines += [f"- {row.name}: {_escape(row.reason)}" for row in notes]
    return "\n".join(lines) + ("\n" if notes else "")


def _families(rows: list[Row]) -> str:
    families = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    lines = [
        "## Families\n",
        "A family is a module of `timm.models`. Errors are the largest among the logits of its verified models.\n",
        "| family | models | verified | refused | failed | not run | kernels | float32 | float64 | smallest drift |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for family, members in sorted(families.items()):
        counts = Counter(row.status for row in members)
        verified = [row for row in members if row.status == VERIFIED]
        kernels = sorted({kernel for row in verified for kernel in row.kernels.split()}, key=_kernel_order)
        numbers = [str(counts[status] or "–") for status in STATUSES]
        drift = f"{min(float(row.drift) for row in verified):.1e}" if verified else "–"
        cells = [family, str(len(members)), *numbers, " ".join(kernels) or "–"]
        cells += [_worst(verified, "error32"), _worst(verified, "error64"), drift]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _refusals(rows: list[Row]) -> str:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.status == REFUSED:
            groups[_kind(row)].append(row)
    lines = ["## Refused\n"]
    for kind, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        families = defaultdict(list)
        for row in members:
            families[row.family].append(row.name)
        lines.append(f"### {kind} ({len(members)})\n")
        for family, names in sorted(families.items()):
            shown = ", ".join(f"`{name}`" for name in names[:6])
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            lines.append(f"- {family} ({len(names)}): {shown}{more}")
        example = members[0]
        lines.append(f"\nFor example: {_escape(example.reason)}\n")
    return "\n".join(lines)


def _kind(row: Row) -> str:
    """What a refusal's reason comes down to, without the names and numbers of the one model."""
    if "other stages:" in row.reason:
        return "No k×k convolution in the last stage, but in earlier ones (`--stage` converts those)"
    if custom := re.search(r"(\w+) is not an nn\.Conv2d|(\w+) has a forward of its own", row.reason):
        return f"`{custom.group(1) or custom.group(2)}` is not an ordinary convolution"
    if int(row.spatial_convolutions or 0) == 0:
        return "No k×k convolution at all"
    if "reads the image itself" in row.reason or "the only k×k convolutions are" in row.reason:
        return "No k×k convolution apart from the stem or patch embedding"
    return "Other"


def _rest(rows: list[Row]) -> str:
    lines = []
    for title, status in (("Failed", FAILED), ("Not run", NOT_RUN)):
        members = [row for row in rows if row.status == status]
        lines.append(f"## {title}\n")
        lines += [f"- `{row.name}`: {_escape(row.reason)}" for row in members] or ["None."]
        lines.append("")
    return "\n".join(lines)


def _worst(rows: list[Row], column: str) -> str:
    values = [float(getattr(row, column)) for row in rows if getattr(row, column)]
    return f"{max(values):.1e}" if values else "–"


def _median(rows: list[Row]) -> str:
    drifts = sorted(float(row.drift) for row in rows)
    return f"{drifts[len(drifts) // 2]:.1e}"


def _kernel_order(kernel: str) -> tuple[int, ...]:
    return tuple(int(side) for side in kernel.split("×"))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
