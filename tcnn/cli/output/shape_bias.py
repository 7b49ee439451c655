"""`tcnn evaluate --shape-bias`: the shape bias of models side by side, as a table, JSON and a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcnn.cli.output import console
from tcnn.errors import RequestError
from tcnn.formatting import some, unreadable

if TYPE_CHECKING:
    from tcnn.checkpoints.opening import Opener
    from tcnn.config.evaluation import EvaluationConfig
    from tcnn.evaluation.shape_bias import ShapeBias


def measure(
    models: Sequence[str],
    folder: str,
    config: "EvaluationConfig",
    opening: "Opener",
    figure: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure every model on a folder of cue-conflict images, print and draw."""
    from tcnn.evaluation.shape_bias import ShapeBiasReport, conflicts, shape_bias
    from tcnn.models.running import usable_device

    if len(config.sizes) > 1:
        raise RequestError("--size: with --shape-bias one size at a time")
    if figure is not None:
        from tcnn.analysis.plots import require_plots

        require_plots()
        if figure.suffix not in (".png", ".svg"):
            raise RequestError(f"--figure: expected a name that ends in .png or .svg, found {figure}")
    conflicts(folder)  # before any model is loaded
    place = usable_device(config.device)
    rows = []
    with console.steps(len(models), quiet=as_json) as step:
        for name in models:
            step(name)
            rows.append(
                shape_bias(
                    opening(name).to(place), name, folder, size=config.sizes[0] if config.sizes else None,
                    batch_size=config.batch_size, amp=config.amp,
                )
            )  # fmt: skip
    if as_json:
        console.print_json(ShapeBiasReport(data=folder, rows=rows))
    else:
        _show(rows, folder)
    if figure is not None:
        from tcnn.analysis.plots import style
        from tcnn.analysis.plots.robustness import shape_bias as drawn

        style.write(drawn(rows), figure.with_suffix(""), ("svg" if figure.suffix == ".svg" else "png",), force)
        if not as_json:
            console.stdout().print(f"wrote {figure}", markup=False)


def _show(rows: "Sequence[ShapeBias]", folder: str) -> None:
    from rich.table import Table

    out = console.stdout()
    table = Table(title=f"{folder}: {some(rows[0].images, 'image')}", title_justify="left", box=None, pad_edge=False)
    for word in ("model", "shape", "texture", "neither", "shape bias", "95 %"):
        table.add_column(word, justify="left" if word == "model" else "right", overflow="fold")
    for row in rows:
        made = row.decisions
        known = row.bias is not None and row.low is not None and row.high is not None
        table.add_row(
            row.model, str(made.shape), str(made.texture), str(made.neither),
            f"{row.bias:.1%}" if known else "–", f"{row.low:.1%} to {row.high:.1%}" if known else "–",
        )  # fmt: skip
    out.print(table)
    out.print("shape bias: shape decisions among those for shape or texture (Geirhos et al. 2019)", markup=False)
    lost = max(rows, key=lambda row: len(row.unreadable))
    if lost.unreadable:
        out.print(f"{unreadable(len(lost.unreadable))}: {lost.unreadable[0]}", markup=False)
