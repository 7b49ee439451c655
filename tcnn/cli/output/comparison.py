"""The tables of `tcnn evaluate`: models side by side, corruptions, classes, and notes on what was measured."""

from typing import TYPE_CHECKING

from tcnn.cli.output import console

if TYPE_CHECKING:
    from rich.console import Console

    from tcnn.evaluation.comparing.before_after import Estimate
    from tcnn.evaluation.comparing.paired import PairedDifference
    from tcnn.evaluation.comparing.report import Comparison, Row
    from tcnn.evaluation.scores import Score


def show(result: "Comparison", out: "Console") -> None:
    """Print a comparison: a line per model and size, then what else was measured."""
    from rich.table import Table

    rows = result.rows
    corrupted = any(row.corruptions for row in rows)
    title = f"{result.data}: {console.some(result.images, 'image')}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in (
        "parameters",
        "size",
        "top-1",
        "95%",
        "top-5",
        "loss",
        *(("corrupted", "mCE") if corrupted else ()),
        "images/s",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        shares = (_share(row.corruption_top1), _share(row.mce)) if corrupted else ()
        clean = row.clean
        scores = list(row.corruptions.values())
        speed = clean or next(iter(scores[0].severities.values()))
        table.add_row(
            row.model, console.scale(row.parameters), _size(row), _share(clean.top1 if clean else None),
            _range(clean), _share(clean.top5 if clean else None), f"{clean.loss:.3f}" if clean else "–", *shares,
            f"{speed.images_per_second:.0f}",
        )  # fmt: skip
    out.print(table)
    if result.differences:
        _show_differences(result, out)
    if corrupted:
        _show_corruptions(result, out)
    if any(row.clean and row.clean.per_class for row in rows):
        _show_classes(rows, out)
    _show_notes(result, out)


def _show_differences(result: "Comparison", out: "Console") -> None:
    from rich.table import Table

    over = result.differences[0].over
    title = f"how much better than {over}, image by image: percentage points, with 95% intervals"
    out.print(f"\n{title}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right")
    kinds = [kind for kind in ("top1", "corrupted") if any(getattr(each, kind) for each in result.differences)]
    for kind in kinds:
        table.add_column(kind.replace("top1", "top-1"), justify="right")
    for each in result.differences:
        table.add_row(each.of, _size(each), *(_points(getattr(each, kind)) for kind in kinds))
    out.print(table)


def _points(found: "Estimate | None") -> str:
    return "–" if found is None else f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _range(score: "Score | None") -> str:
    if score is None or score.top1_interval is None:
        return "–"
    low, high = score.top1_interval
    return f"{100 * low:.1f}–{100 * high:.1f}"


def _show_corruptions(result: "Comparison", out: "Console") -> None:
    from rich.table import Table

    table = Table(
        title="\ntop-1 under corruption" + (" (CE)" if result.baseline else ""), title_justify="left", box=None
    )
    table.pad_edge = False
    table.add_column("corruption")
    for row in result.rows:
        table.add_column(f"{row.model} {_size(row)}", justify="right", overflow="fold")
    for name in result.rows[0].corruptions:
        scores = [row.corruptions[name] for row in result.rows]
        table.add_row(name, *(_share(s.top1) + (f" ({_share(s.ce)})" if result.baseline else "") for s in scores))
    out.print(table)


def _show_classes(rows: "list[Row]", out: "Console") -> None:
    from rich.table import Table

    table = Table(title="\ntop-1 of every class", title_justify="left", box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    table.add_column("images", justify="right")
    for row in rows:
        table.add_column(f"{row.model} {_size(row)}", justify="right", overflow="fold")
    results = [row.clean.per_class if row.clean else {} for row in rows]
    for name in dict.fromkeys(name for result in results for name in result):
        images = next(result[name].images for result in results if name in result)
        table.add_row(name, str(images), *(_share(r[name].top1) if name in r else "–" for r in results))
    out.print(table)


def _show_notes(result: "Comparison", out: "Console") -> None:
    if result.held_out:
        out.print("measured on the images that training had held out, and on no others", markup=False)
    if result.trained_on:
        names = ", ".join(result.trained_on)
        out.print(f"trained on these images, so this tells nothing about others: {names}", markup=False)
    for row in {row.model: row for row in result.rows}.values():
        if row.classes < row.outputs:
            out.print(f"{row.model}: {row.classes} of its {row.outputs} classes compete", markup=False)
    if result.baseline is not None:
        whose = "AlexNet's (Hendrycks & Dietterich 2019)" if result.baseline == "alexnet" else f"{result.baseline}'s"
        out.print(f"CE is the error as a share of {whose}, mCE its mean over corruptions.", markup=False)
    worst = max(result.rows, key=lambda row: row.unreadable_count)
    if worst.unreadable_count:
        named = ", ".join(worst.unreadable[:3]) + (" …" if worst.unreadable_count > 3 else "")
        out.print(f"{worst.unreadable_count} images cannot be read and are left out: {named}", markup=False)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _size(row: "Row | PairedDifference") -> str:
    return f"{row.height}" if row.height == row.width else f"{row.height}×{row.width}"
