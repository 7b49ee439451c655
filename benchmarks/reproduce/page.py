"""The tables of docs/results.md, from what the reproduction measured.

python benchmarks/reproduce/page.py      writes them between the marks on the page
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "reproduce_cifar10.json"
PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Markdown tables by the name of their mark."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        rows.setdefault(row["way"], []).append(row)
    return {
        "accuracy": accuracy(rows),
        "epochs": epochs(rows),
        "corruptions": corruptions(rows),
        "layers": layers(rows),
    }


def accuracy(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Clean accuracy after the first epoch and at the end, and corruption accuracy: mean ± standard deviation."""
    lines = ["| | seeds | after one epoch | clean | corrupted |", "|---|---|---|---|---|"]
    for way, own in rows.items():
        first = spread([row for row in own if "first_epoch_top1" in row], "first_epoch_top1")
        lines.append(f"| {way} | {len(own)} | {first} | {spread(own, 'top1')} | {spread(own, 'corruption_top1')} |")
    return "\n".join(lines)


def epochs(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Accuracy on the small validation set after every epoch, means over seeds."""
    trained = {way: [row["epochs_top1"] for row in own] for way, own in rows.items() if "epochs_top1" in own[0]}
    count = max(len(curve) for curves in trained.values() for curve in curves)
    lines = ["| after epoch | " + " | ".join(str(n + 1) for n in range(count)) + " |", "|---" * (count + 1) + "|"]
    for way, curves in trained.items():
        means = [statistics.mean(values) for values in zip(*curves, strict=True)]
        lines.append(f"| {way} | " + " | ".join(f"{100 * mean:.1f} %" for mean in means) + " |")
    return "\n".join(lines)


def corruptions(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Accuracy by corruption, means over severities and seeds."""
    names = list(next(iter(rows.values()))[0]["by_corruption"])
    lines = ["| | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for name in names:
        means = [statistics.mean(row["by_corruption"][name] for row in own) for own in rows.values()]
        lines.append(f"| {name} | " + " | ".join(f"{100 * mean:.1f} %" for mean in means) + " |")
    return "\n".join(lines)


def layers(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Mean gate and span over all layers at the end."""
    lines = ["| | gate σ(λ/τ) | span 1/α |", "|---|---|---|"]
    for way, own in rows.items():
        if own[0].get("gate_mean"):
            gate, span = (
                statistics.mean(v for row in own for v in row[k].values()) for k in ("gate_mean", "span_mean")
            )
            lines.append(f"| {way} | {gate:.2f} | {span:.2f} |")
    return "\n".join(lines)


def spread(rows: list[dict[str, Any]], key: str) -> str:
    if not rows:
        return "–"
    values = [100 * row[key] for row in rows]
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation} %"


def fill(page: str, results: dict[str, Any]) -> str:
    """The page with its tables replaced."""
    for name, table in tables(results).items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        page = mark.sub(lambda found, table=table: found[1] + table + found[2], page)
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(), json.loads(RESULTS.read_text())))
