"""The groups in which `--help` shows a command's options."""

from typing import Any

MODEL, IMAGES, RECIPE, CONVERSION, MACHINE, OUTPUT = (
    "Model", "Images", "Training", "Conversion", "Device and speed", "Output",
)  # fmt: skip
PANELS: dict[str, tuple[str, ...]] = {
    MODEL: (
        "weights", "pretrained", "num_classes", "against", "compare", "named", "model_kwargs", "teacher", "baseline",
    ),
    IMAGES: (
        "data", "val", "val_split", "images", "split", "size", "crop_pct", "layout", "limit", "corruption",
        "all_corruptions", "severities", "shown", "query", "shape", "fraction", "batch", "dynamic", "fixed",
    ),
    RECIPE: (
        "preset", "config", "epochs", "finetune_epochs", "batch_size", "lr", "anneal", "convert", "convert_at", "seed",
        "assignments", "resume", "allow_changes",
    ),
    CONVERSION: (
        "stride", "stage", "target", "temperature", "head_dim", "content_heads", "query_key", "position",
        "position_reach", "content", "tolerance", "max_error", "prune",
        "far",
    ),
    MACHINE: ("device", "workers", "nproc", "engine", "address", "amp", "channels_last", "seconds", "slots"),
    OUTPUT: (
        "out", "force", "as_json", "csv_file", "figure", "results_csv", "result", "per_class", "explain",
        "dry_run", "explorer", "format", "formats", "print_config", "top", "evaluation", "opset",
    ),
}  # fmt: skip
FEW = 6
"""A command of no more options is shown in one group."""


def without_values(command: Any) -> None:
    """Have help name no value for a switch, which takes none; `--help` itself is made when it is asked for."""
    own = command.get_help_option

    def help_option(context: Any) -> Any:
        option = own(context)
        if option is not None:
            option.metavar = ""
        return option

    command.get_help_option = help_option
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


def group(command: Any) -> None:
    """Put a command's options into groups; those that no group names stay among its general ones."""
    options = [one for one in command.params if one.opts[0].startswith("-") and not getattr(one, "hidden", False)]
    if len(options) <= FEW:
        return
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for option in options:
        if option.name in panel_of:
            option.rich_help_panel = panel_of[option.name]
