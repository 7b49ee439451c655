"""`tcnn finetune`: fine-tune a T-CNN, or a CNN that is converted first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from unicodedata import category

import typer

from tcnn.cli.options.shared import (
    Anneal,
    AnyModel,
    AsJson,
    BatchSize,
    ConfigFile,
    ConvertAt,
    Device,
    Epochs,
    Fraction,
    LearningRate,
    NetworkOrFiles,
    Pixels,
    Preset,
    Pretrained,
    RefusedModelKwargs,
    Seed,
    Teacher,
    Validation,
    Workers,
    beginning,
    given,
)
from tcnn.cli.options.spellings import image_size, processes
from tcnn.cli.output import console
from tcnn.processes import keep_freed_memory, loading

if TYPE_CHECKING:
    from tcnn.evaluation.comparing.before_after import BeforeAfter
    from tcnn.training.single_run import FinetuneResult

_KEPT = "._-\u200c\u200d"
"""Of a model's name, in the name of its run's directory, beside letters, digits and the marks that belong to letters:
the last two join and part letters."""


def command(
    model: AnyModel = None,
    data: Annotated[
        str | None,
        typer.Option(help="Training images: a folder, a .tar, hfds/…, torch/…, wds/….", metavar="DATASET"),
    ] = None,
    val: Validation = None,
    val_split: Annotated[
        float | None,
        typer.Option(help="Hold out this fraction of the training images; 0.1 if there is no split.", metavar="F"),
    ] = None,
    preset: Preset = "paper",
    config: ConfigFile = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    size: Pixels = None,
    convert: Annotated[
        bool | None, typer.Option("--convert/--no-convert", help="Train the T-CNN, or the CNN with the same recipe.")
    ] = None,
    convert_at: ConvertAt = None,
    anneal: Anneal = None,
    fraction: Fraction = None,
    teacher: Teacher = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Afterwards train the CNN in the same way, and compare the two.")
    ] = False,
    seed: Seed = None,
    workers: Workers = None,
    nproc: Annotated[
        int | None, typer.Option(help="Training processes, one per GPU; default 1.", metavar="N", min=1)
    ] = None,
    num_workers: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
    engine: Annotated[
        str, typer.Option(help="What starts the processes: local (torchrun on this host) or ray.", metavar="local|ray")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster.", metavar="HOST:PORT")] = None,
    device: Device = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting; repeatable.", metavar="KEY=VALUE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's directory; default: runs/MODEL, then runs/MODEL-2 …", metavar="DIR")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest resume point in --out.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Resume even if settings have changed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the run in --out.")] = False,
    pretrained: Pretrained = True,
    weights: Annotated[Path | None, typer.Option(help="Load the CNN's weights from this file.", metavar="FILE")] = None,
    module: NetworkOrFiles = None,
    model_kwargs: RefusedModelKwargs = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML and exit; with --json, as JSON.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on a data set with the paper's recipe; options, --set, a file or a preset override any part of it."""
    from tcnn.config import build, finetune_config, settings_given
    from tcnn.config.effects import refuse_contradictions, refuse_without_effect
    from tcnn.config.presets import assigned
    from tcnn.training.launch.exchange import Placement
    from tcnn.training.preparing.settings import check_run
    from tcnn.zoo.catalogue import cnn_of

    options = given(
        epochs=epochs, batch_size=batch_size, lr=lr, size=image_size(size), convert=convert, convert_at=convert_at,
        anneal=anneal, fraction=fraction, teacher=teacher, seed=seed, workers=workers, device=device,
        val_split=val_split,
    )  # fmt: skip
    model = beginning(model, module)
    settings, chosen = finetune_config(preset, config, assignments or (), options), assigned(assignments or ())
    if not print_config:
        refuse_contradictions(chosen, options)
        refuse_without_effect(settings, chosen, "--set ")
        refuse_without_effect(settings, options, "--")
    check_run(
        model, resume=resume, force=force, allow_changes=allow_changes, weights=weights, pretrained=pretrained,
        conversion=[name for name in assignments or () if name.strip().startswith("conversion")],
        both_sets=val is not None and settings.val_split is not None, convert=settings.convert,
    )  # fmt: skip
    model = cnn_of(model)
    placement = build(Placement, {"engine": engine, "num_workers": processes(nproc, num_workers), "address": address})
    if print_config and as_json:
        console.print_json(settings)
        return
    if print_config:
        import yaml

        typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), console.results(), nl=False)
        return
    if data is None:
        raise typer.BadParameter("missing; name the training images", param_hint="--data")
    directory = out or default_directory(model, resume or force, replace=force)
    if not Path(model).exists() and not model.endswith(".safetensors"):
        from tcnn.zoo import catalogue

        catalogue.check(model, default_choice=settings.convert and settings.conversion == type(settings.conversion)())

    with loading():
        from tcnn.training.launch.exchange import RunRequest
        from tcnn.training.launch.launcher import finetune_on
        from tcnn.training.runs.callbacks import Callbacks

    keep_freed_memory()
    with console.training(as_json, directory) as (report, say):
        request = RunRequest(
            model=model, data=data, val=val, config=settings, out=str(directory), resume=resume, force=force,
            allow_changes=allow_changes, pretrained=pretrained, weights=None if weights is None else str(weights),
            module=module, baseline=baseline, given=settings_given(settings, chosen, preset),
        )  # fmt: skip
        result = finetune_on(placement, request, Callbacks(report, say))
    if as_json:
        console.print_json(result)
    else:
        show(result)


def show(result: "FinetuneResult") -> None:
    """Print the models before and after, the final accuracy, and the paths of the checkpoints."""
    if result.before_after is not None:
        show_before_after(result.before_after)
    console.stdout().print(str(result), markup=False)


def show_before_after(found: "BeforeAfter") -> None:
    """Print the models before and after side by side."""
    from rich.table import Table

    from tcnn.evaluation.comparing.before_after import ROLES

    out = console.stdout()
    table = Table(box=None, pad_edge=False)
    for word in ("", "top-1", "95 %", "corrupted", "95 %", "parameters", "MFLOPs", "images/s", "MB"):
        table.add_column(word, justify="right" if word else "left")
    for row in found.rows:
        if row.accuracy is None or row.cost is None:
            table.add_row(ROLES[row.role], f"not measured: {row.missing}")
            continue
        top1, cost = row.accuracy.top1, row.cost
        harder = None if row.corrupted is None else row.corrupted.top1
        table.add_row(
            ROLES[row.role] + (" (new classifier)" if row.new_classifier else ""), f"{top1.mean:.2%}",
            f"{top1.low:.1%} to {top1.high:.1%}", "–" if harder is None else f"{harder.mean:.1%}",
            "" if harder is None else f"{harder.low:.0%} to {harder.high:.0%}", f"{cost.parameters:,}",
            "–" if cost.flops is None else f"{cost.flops / 1e6:,.0f}", f"{cost.images_per_second.median:,.0f}",
            f"{cost.bytes / 1e6:.1f}",
        )  # fmt: skip
    out.print(table)


def default_directory(model: str, existing: bool, replace: bool = False) -> Path:
    """`runs/MODEL`, or the first of `runs/MODEL-2`, `-3` … that is free; if `existing`, the last that is not.

    `replace`: none that has the model in it.
    """
    first = Path("runs") / default_name(model)
    numbered = [first]
    while numbered[-1].exists() and (not numbered[-1].is_dir() or any(numbered[-1].iterdir())):
        numbered.append(first.with_name(f"{first.name}-{len(numbered) + 1}"))
    *taken, free = numbered
    if replace:
        from tcnn.training.runs.rundir import lies_in

        taken = [place for place in taken if not lies_in(model, place)]
    return taken[-1] if existing and taken else free


def default_name(model: str) -> str:
    """A directory name from a model's name or path."""
    stem = Path(model.partition(":")[2] or model).name.removesuffix(".safetensors")
    kept = "".join(c if c.isalnum() or c in _KEPT or category(c).startswith("M") else "_" for c in stem)
    return kept.strip(".") or "run"  # ".." is a directory, and one with a dot before it is hidden
