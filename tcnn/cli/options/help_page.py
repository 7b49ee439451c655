"""The `--help` of a command: the groups in which it shows the options, and the examples below them."""

from collections.abc import Iterable
from typing import Any

MODEL, IMAGES, RECIPE, CONVERSION, MACHINE, OUTPUT = (
    "Model", "Images", "Training", "Conversion", "Device and speed", "Output",
)  # fmt: skip
PANELS: dict[str, tuple[str, ...]] = {
    MODEL: (
        "weights", "pretrained", "num_classes", "against", "compare", "named", "model_kwargs", "module",
        "teacher", "baseline",
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
    """Have help name no value for a switch, which takes none; `--help` itself is made when it is asked for.

    Of a group also those of its commands.
    """
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
    for inner in getattr(command, "commands", {}).values():
        without_values(inner)


def group(command: Any) -> None:
    """Put a command's options into groups; those that no group names stay among its general ones."""
    options = [one for one in command.params if one.opts[0].startswith("-") and not getattr(one, "hidden", False)]
    if len(options) <= FEW:
        return
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for option in options:
        if option.name in panel_of:
            option.rich_help_panel = panel_of[option.name]


EXAMPLES: dict[str, tuple[str, ...]] = {
    "convert": (
        "tcnn convert resnet50d t_resnet50d.safetensors",
        "tcnn convert resnet18 --no-pretrained --dry-run",
        "tcnn convert resnet50 t.safetensors --weights my_resnet50.pth",
        "tcnn convert resnet50d hub/ --stride dilate --content-heads 4",
        "tcnn convert --module nets.small:build small.safetensors --size 32",
    ),
    "verify": (
        "tcnn verify t_resnet50d.safetensors",
        "tcnn verify t_resnet50d.safetensors --images photos/",
        "tcnn verify t.safetensors --weights my_resnet50.pth --explain why.html",
        "tcnn verify resnet50.a1_in1k --against resnet50.tv_in1k --json",
    ),
    "info": ("tcnn info runs/photos", "tcnn info t_resnet50d.safetensors --json", "tcnn info resnet50d"),
    "models": ("tcnn models", "tcnn models resnet50d", "tcnn models 'regnet*' --json"),
    "plan": (
        "tcnn plan resnet50d --data photos/ --preset quick",
        "tcnn plan resnet50d --data photos/ --batch-size 32 --seconds 60",
        "tcnn plan t_resnet50d.safetensors --data photos/ --json",
    ),
    "finetune": (
        "tcnn finetune resnet50d --data photos/ --preset quick",
        "tcnn finetune resnet50d --data photos/ --preset quick --out runs/photos --resume",
        "tcnn finetune t_resnet50d.safetensors --data train/ --val val/ --epochs 10 --batch-size 256",
        "tcnn finetune resnet50d --data photos/ --no-convert --out runs/cnn",
        "tcnn finetune resnetrs50 --data imagenet/ --set conversion.stride=remove --nproc 8",
    ),
    "evaluate": (
        "tcnn evaluate runs/photos",
        "tcnn evaluate resnet50d t_resnet50d.safetensors --data imagenet/",
        "tcnn evaluate runs/photos --data test/ --corruptions --csv robust.csv",
        "tcnn evaluate output/train/mine/model_best.pth.tar --data photos/",
    ),
    "predict": (
        "tcnn predict runs/photos new.jpg",
        "tcnn predict runs/photos holiday/ --top 3 --csv guesses.csv",
        "tcnn predict t_resnet50d.safetensors new.jpg --compare resnet50d",
    ),
    "inspect": (
        "tcnn inspect runs/photos",
        "tcnn inspect runs/photos --images photos/ --out looks",
        "tcnn inspect t_resnet50d.safetensors --json",
    ),
    "report": ("tcnn report runs/photos", "tcnn report runs/photos --out r.html", "tcnn report runs/photos --json"),
    "fold": (
        "tcnn fold runs/photos folded.safetensors",
        "tcnn fold runs/photos folded.safetensors --max-error 0.01",
        "tcnn fold runs/photos pruned.safetensors --prune --data photos",
        "tcnn fold t_resnet50d.safetensors cnn.safetensors --json",
    ),
    "export": (
        "tcnn export runs/photos photos.onnx",
        "tcnn export runs/photos photos.onnx --size 224x224 --fixed",
        "tcnn export runs/photos photos.pt2 --dynamic batch",
        "tcnn export runs/photos photos-explorer --explorer",
    ),
    "init": (
        "tcnn init vit_tiny_patch16_224 vit.safetensors",
        "tcnn init vit_tiny_patch16_224 vit.safetensors --init mimetic --num-classes 10 --size 96",
        "tcnn init deit_small_patch16_224 deit.safetensors --window 5 --json",
    ),
    "push": (
        "tcnn push runs/photos you/t_resnet50d --dry-run",
        "tcnn push runs/photos you/t_resnet50d",
        "tcnn push t_resnet50d.safetensors you/t_resnet50d --json",
    ),
    "demo": ("tcnn demo", "tcnn demo --out demo --epochs 3", "tcnn demo --json"),
}


def epilog(command: str) -> str:
    """The examples of a command of the library, as its help ends with them."""
    return listed(EXAMPLES[command])


def listed(lines: Iterable[str]) -> str:
    """Examples as Typer shows them: blank lines keep them apart."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)
