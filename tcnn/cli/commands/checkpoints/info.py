"""`tcnn info`: what a file, a run or a model is."""

from typing import TYPE_CHECKING, Any

from tcnn.cli.options.shared import AnyCheckpoint, AsJson
from tcnn.cli.output import console
from tcnn.formatting import share

if TYPE_CHECKING:
    from tcnn.analysis.reading.model_info import ModelInfo, Trained

FOLDED = {
    "exact": "heads that were convolutions, which changes nothing",
    "approximate": "heads that were nearly convolutions, with an error",
    "pruned": "heads were removed by where they look",
}
SHOWN = 12
"""Class names that are printed."""


def command(
    name: AnyCheckpoint,
    as_json: AsJson = False,
) -> None:
    """Describe a file, a run or a model: source, conversion, parameters, τ, classes, verification, accuracy."""
    from tcnn.analysis.reading.info import info

    found = info(name)
    if as_json:
        console.print_json(found)
    else:
        _show(found)


def _show(found: "ModelInfo") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for title, text in _lines(found):
        if text:
            table.add_row(title, text)
    console.stdout().print(table, markup=False)


def _lines(found: "ModelInfo") -> list[tuple[str, Any]]:
    size = "" if found.bytes is None else f", {console.scale(found.bytes)}B"
    before, after = found.parameters_before, found.parameters
    grown = f"{console.scale(before)} → " if before is not None and before != after else ""
    temperature = found.temperature and " to ".join(dict.fromkeys(f"{value:.4g}" for value in found.temperature))
    names = found.label_names or ()
    listed = ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
    checked, trained, earlier = found.verification, found.training, found.source_training
    kind = f", positions {found.position}" if found.position not in (None, "isotropic") else ""
    return [
        ("what", f"{found.kind}{' of ' + found.source if found.source and found.source != found.name else ''}"),
        ("file", found.file and f"{found.file}{size}"),
        ("weights", found.weights),
        ("converted", f"{console.some(found.layers, 'layer')} of stage {found.stage}, "
         f"stride {found.stride or 'keep'}{kind}"
         if found.layers and found.kind == "T-CNN" else None),
        ("can convert", f"{console.some(found.layers, 'layer')} of stage {found.stage}"
         if found.layers and found.kind == "timm model" else None),
        ("parameters", None if after is None else f"{grown}{console.scale(after)}"),
        ("FLOPs", found.flops and f"{console.scale(found.flops)} an image"),
        ("τ", temperature or None),
        ("image", found.input_size and "×".join(map(str, found.input_size))),
        ("classes", None if found.classes is None else f"{found.classes}{': ' + listed if listed else ''}"),
        ("licence", found.license),
        ("verified", checked and _verified(checked.passed, checked.errors, checked.drift)),
        ("its CNN", earlier and "fine-tuned " + ", ".join(filter(None, (_learned(earlier), _measured(earlier))))),
        ("fine-tuned", trained and _learned(trained)),
        ("folded", found.fold and FOLDED[found.fold]),
        ("accuracy", trained and _measured(trained, found.fold)),
        ("written by", found.tcnn_version and f"tcnn {found.tcnn_version}"),
    ]  # fmt: skip


def _learned(trained: "Trained") -> str:
    return f"on {trained.data}, epoch {trained.epoch}"


def _measured(trained: "Trained", fold: str | None = None) -> str | None:
    if trained.top1 is None:
        return None
    between = trained.top1_interval
    sure = f" ({100 * between[0]:.1f}–{100 * between[1]:.1f})" if between else ""
    measured_on = f"{sure} of {console.some(trained.images, 'image')}" if trained.images else ""
    earlier = {"pruned": " and before it was pruned", "approximate": " and before it was folded"}.get(fold or "", "")
    return f"top-1 {trained.top1:.1%}{measured_on}, measured while it was trained{earlier}"


def _verified(passed: bool, errors: dict[str, float], drift: float | None) -> str:
    each = ", ".join(f"{error:.1e} in {dtype}" for dtype, error in errors.items())
    return f"{'equal' if passed else 'NOT EQUAL'} when it was converted: {each}" + (
        "" if drift is None else f"; drift at τ = 1 {share(drift)}"
    )
