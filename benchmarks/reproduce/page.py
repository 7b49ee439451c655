"""What was measured, in docs/results.md: tables and pictures of experiments, of all together, of budgets.

python benchmarks/reproduce/page.py      writes between the marks on the page, and docs/img/results-*.png
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import forest
from bootstrap import Interval
from figures import (
    BUDGET_PICTURE,
    KINDS,
    BudgetPoint,
    Result,
    budget_picture,
    budget_points,
    draw,
    mean_curve,
    pictures,
)

from tcnn.analysis.plots import style

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"
PAGE = ROOT / "docs" / "results.md"
MARK = re.compile(r"(<!-- experiments -->\n).*?(<!-- /experiments -->)", re.DOTALL)
BUDGETS = re.compile(r"(<!-- budgets -->\n).*?(<!-- /budgets -->)", re.DOTALL)
FOREST = re.compile(r"(<!-- forest -->\n).*?(<!-- /forest -->)", re.DOTALL)
PREDICTIONS = ROOT / "benchmarks" / "results" / "predictions.json"
PREDICTED = re.compile(r"(<!-- predictions -->\n).*?(<!-- /predictions -->)", re.DOTALL)
NONE = "None of them has been run here to its end yet.\n"


def measured() -> list[Result]:
    """Every experiment that has been run, in the order of their names."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]


def fill(page: str, results: Sequence[Result]) -> str:
    """The page with the experiments' part replaced."""
    text = "\n".join(section(result) for result in results) or NONE
    page = MARK.sub(lambda found: found[1] + text + found[2], page)
    page = FOREST.sub(lambda found: found[1] + everything(compared(results)) + found[2], page)
    return BUDGETS.sub(lambda found: found[1] + budgets(budget_points(by_name(results))) + found[2], page)


def by_name(results: Sequence[Result]) -> dict[str, Result]:
    return {result["experiment"]["name"]: result for result in results}


def compared(results: Sequence[Result]) -> list[forest.Comparison]:
    return forest.comparisons(by_name(results), RESULTS)


def everything(found: list[forest.Comparison]) -> str:
    """What the T-CNN is above the CNN in the mean of all comparisons, by what learned."""
    lines = [
        "| trained | comparisons, trainings of a CNN | clean | of these, corrupted | corrupted |",
        "|---|---|---|---|---|",
    ]
    for name, groups in forest.POOLED.items():
        cells = [name]
        for kind in forest.KINDS:
            count, trainings, mean = forest.together(found, groups, kind)
            cells += [f"{count}, {trainings}", _points(_as_told(mean))]
        lines.append(_line(cells))
    return "\n".join(lines) + f"\n\n![T-CNN minus CNN in every comparison](img/{forest.PICTURE}.png)\n"


def _as_told(found: Interval) -> Result:
    return {"mean": found.mean, "interval": [found.low, found.high]}


def budgets(points: Sequence[BudgetPoint]) -> str:
    """What the T-CNN is above the CNN, by learning rate and budget."""
    lines = ["| learning rate | images | updates | seeds | clean | corrupted |", "|---|---|---|---|---|---|"]
    for point in points:
        cells = [point.rate, point.images, f"{point.updates:,.0f}", str(point.seeds)]
        lines.append(_line([*cells, *(_points(point.gains[kind]) for kind in KINDS)]))
    return "\n".join(lines) + f"\n\n![Difference by budget](img/{BUDGET_PICTURE}.png)\n"


def predictions(results: dict[str, Result]) -> str:
    """What `predictions.py` has found, in one table; "" for nothing."""
    if not results:
        return ""
    lines = ["| | option | layers | same prediction | correct, CNN | correct, T-CNN | largest relative error |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for network, found in results.items():
        for row in found["rows"]:
            same = f"{row['same_prediction']:,} of {row['images']:,}"
            cells = [network, row["option"], str(row["layers"]), same, str(row["right_cnn"]), str(row["right_tcnn"])]
            lines.append(_line([*cells, f"{row['relative_error']:.1e}"]))
    return "\n".join(lines) + "\n"


def section(result: Result) -> str:
    """One experiment in Markdown."""
    experiment, summary = result["experiment"], result["summary"]
    parts = [f"### {experiment['title']}", experiment["about"].strip(), setting(result), accuracies(summary)]
    parts += [differences(result)] if any("against" in entry for entry in summary) else []
    parts += [by_epoch(result)] if any("epochs" in row for row in result["rows"]) else []
    parts += [by_corruption(result)] if any("corrupted" in row["accuracy"] for row in result["rows"]) else []
    parts += [f"![{alt}](img/{name}.png)" for name, (alt, _) in pictures(result).items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def setting(result: Result) -> str:
    """What was measured, on what."""
    experiment, rows = result["experiment"], result["rows"]
    images = rows[0]["images"]
    clean = f"{images['clean']:,} validation images"
    corrupted = ""
    if how := experiment["corrupted"]:
        corrupted = (
            f"; corrupted: {images['corrupted']:,} of them under {len(how['corruptions'])} corruptions at severity "
            f"{', '.join(map(str, how['severities']))}"
        )
    named = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"`{experiment['model']}`, {clean}{corrupted}. {result['hardware']}; {named}."


def accuracies(summary: Sequence[Result]) -> str:
    """Every arm, with what it cost; intervals are of images and seeds."""
    lines = ["| | seeds | updates | seconds | parameters | clean | corrupted |", "|---|---|---|---|---|---|---|"]
    for entry in summary:
        cells = [entry["label"], str(entry["seeds"])]
        cells += [f"{entry[key]:,.0f}" if key in entry else "–" for key in ("updates", "train_seconds", "parameters")]
        cells += [_share(entry[kind]) if kind in entry else "–" for kind in ("clean", "corrupted")]
        lines.append(_line(cells))
    return "\n".join(lines)


def differences(result: Result) -> str:
    """Percentage points that an arm is above those that it is compared with, with their paired intervals."""
    labels = {entry["arm"]: entry["label"] for entry in result["summary"]}
    every = [gains for entry in result["summary"] for gains in entry.get("against", {}).values()]
    losses = any("loss" in gains for gains in every)
    also = (
        " Cross-entropy is that of the clean images, with intervals over seeds only; lower is better." if losses else ""
    )
    lines = [
        f"Differences in percentage points, paired by image and by seed, with 95 % intervals over both.{also}", "",
        "| | compared with | seeds | clean | corrupted |" + " cross-entropy |" * losses,
        "|---|---|---|---|---|" + "---|" * losses,
    ]  # fmt: skip
    for entry in result["summary"]:
        for other, gains in entry.get("against", {}).items():
            cells = [entry["label"], labels[other], str(gains["seeds"])]
            cells += [_points(gains[kind]) if kind in gains else "–" for kind in ("clean", "corrupted")]
            cells += [_points(gains["loss"], _nats) if "loss" in gains else "–"] * losses
            lines.append(_line(cells))
    return "\n".join(lines)


def by_epoch(result: Result) -> str:
    """Accuracy after every epoch, means over seeds, at the most ten epochs of a long run."""
    curves = {arm: curve for arm in _arms(result) if (curve := mean_curve(result, arm))}
    most = max(len(curve) for curve in curves.values())
    shown = sorted({round(most * part / 10) for part in range(1, 11)} - {0}) if most > 10 else range(1, most + 1)
    lines = [_line(["after epoch", *map(str, shown)]), "|---" * (len(shown) + 1) + "|"]
    for arm, curve in curves.items():
        cells = [f"{100 * curve[number - 1]:.1f} %" if number <= len(curve) else "" for number in shown]
        lines.append(_line([_label(result, arm), *cells]))
    return "\n".join(lines)


def by_corruption(result: Result) -> str:
    """Accuracy by corruption, means over severities and seeds."""
    table: dict[str, dict[str, list[float]]] = {}
    for row in result["rows"]:
        for case, value in row["accuracy"].get("corrupted", {}).items():
            table.setdefault(case.partition("/")[0], {}).setdefault(row["arm"], []).append(value)
    shown = _arms(result)
    lines = [_line(["", *(_label(result, arm) for arm in shown)]), "|---" * (len(shown) + 1) + "|"]
    for name, by_arm in table.items():
        cells = [f"{100 * statistics.mean(by_arm[arm]):.1f} %" if arm in by_arm else "–" for arm in shown]
        lines.append(_line([name.replace("_", " "), *cells]))
    return "\n".join(lines)


def _arms(result: Result) -> list[str]:
    return [entry["arm"] for entry in result["summary"]]


def _label(result: Result, arm: str) -> str:
    return next(entry["label"] for entry in result["summary"] if entry["arm"] == arm)


def _share(found: Result) -> str:
    low, high = found["interval"]
    return f"{100 * found['mean']:.2f} % ({100 * low:.1f} to {100 * high:.1f})"


def _nats(loss: float) -> str:
    return f"{loss:+.4f}".replace("-", "−")


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def _points(found: Result, signed: Callable[[float], str] = _signed) -> str:
    """In bold where the interval leaves out 0."""
    low, high = found["interval"]
    text = f"{signed(found['mean'])} ({signed(low)} to {signed(high)})"
    return f"**{text}**" if low > 0 or high < 0 else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    results = measured()
    text = fill(PAGE.read_text(encoding="utf-8"), results)
    found = json.loads(PREDICTIONS.read_text(encoding="utf-8")) if PREDICTIONS.exists() else {}
    PAGE.write_text(PREDICTED.sub(lambda marks: marks[1] + predictions(found) + marks[2], text), encoding="utf-8")
    images = ROOT / "docs" / "img"
    for result in results:
        draw(result, images)
    drawn = budget_picture(budget_points(by_name(results)))
    style.write(drawn, images / BUDGET_PICTURE, ("png",), force=True)
    style.write(forest.picture(compared(results)), images / forest.PICTURE, ("png",), force=True)


if __name__ == "__main__":
    main()
