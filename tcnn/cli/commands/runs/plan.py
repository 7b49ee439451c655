"""`tcnn plan`: what fine-tuning will take in memory, time and disk, before it begins."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.commands.runs.finetune import default_name
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
    RefusedModelKwargs,
    Seed,
    Teacher,
    Validation,
    Workers,
    beginning,
    given,
)
from tcnn.cli.options.spellings import image_size
from tcnn.cli.output import console
from tcnn.processes import keep_freed_memory, loading

if TYPE_CHECKING:
    from tcnn.planning.report import TrainingPlan


def command(
    model: AnyModel = None,
    *,
    data: Annotated[str, typer.Option(help="Training images, as for `tcnn finetune`.", metavar="DATASET")],
    val: Validation = None,
    val_split: Annotated[
        float | None, typer.Option(help="Hold out this fraction of the training images instead.", metavar="F")
    ] = None,
    preset: Preset = "paper",
    config: ConfigFile = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    size: Pixels = None,
    convert: Annotated[
        bool | None,
        typer.Option("--convert/--no-convert", help="Plan for the T-CNN, or for the CNN with the same recipe."),
    ] = None,
    convert_at: ConvertAt = None,
    anneal: Anneal = None,
    fraction: Fraction = None,
    teacher: Teacher = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also plan for the CNN trained afterwards in the same way.")
    ] = False,
    seed: Seed = None,
    workers: Workers = None,
    device: Device = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting of the run.", metavar="KEY=VALUE")
    ] = None,
    module: NetworkOrFiles = None,
    model_kwargs: RefusedModelKwargs = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's directory, to check its disk; default: runs/MODEL.", metavar="DIR")
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained/--no-pretrained", help="The run's weights; the plan itself uses random ones.")
    ] = True,
    weights: Annotated[Path | None, typer.Option(help="The run's weights; not read.", metavar="FILE")] = None,
    seconds: Annotated[
        float, typer.Option(help="Time spent on real training steps; 0 for none.", min=0, metavar="S")
    ] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Estimate parameters, FLOPs, memory, time and disk of a fine-tuning run, with the help of a few real steps.

    Uses random weights, downloads nothing and writes nothing. The plan is for one process. Exit code 4 means that
    there is not enough memory or disk; the output says what would be enough.
    """
    from tcnn.config import finetune_config, settings_given
    from tcnn.config.effects import refuse_contradictions, refuse_without_effect
    from tcnn.config.presets import assigned
    from tcnn.training.preparing.settings import check_run
    from tcnn.zoo.catalogue import cnn_of

    options = given(
        epochs=epochs, batch_size=batch_size, lr=lr, size=image_size(size), convert=convert, convert_at=convert_at,
        anneal=anneal, fraction=fraction, teacher=teacher, seed=seed, workers=workers, device=device,
        val_split=val_split,
    )  # fmt: skip
    model = beginning(model, module)
    settings, chosen = finetune_config(preset, config, assignments or (), options), assigned(assignments or ())
    refuse_contradictions(chosen, options)
    refuse_without_effect(settings, chosen, "--set ")
    refuse_without_effect(settings, options, "--")
    check_run(
        model, resume=False, force=False, allow_changes=False, weights=weights, pretrained=pretrained,
        both_sets=val is not None and settings.val_split is not None, convert=settings.convert,
    )  # fmt: skip
    model = cnn_of(model)
    keep_freed_memory()
    with loading():
        from tcnn.planning.plan import plan

    with console.steps(12 if baseline else 6, quiet=as_json) as step:
        made = plan(
            model, data, val, settings, out or Path("runs") / default_name(model), seconds=seconds, baseline=baseline,
            say=step, **{name: getattr(settings, name) for name in settings_given(settings, chosen, preset)},
        )  # fmt: skip
    if as_json:
        console.print_json(made)
    else:
        show(made)
    if made.problems:
        raise typer.Exit(4)


def show(plan: "TrainingPlan") -> None:
    """Print a plan: one line each for images, model, memory, time and disk, then notes and problems."""
    from rich.table import Table

    out = console.stdout()
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in plan.rows():
        table.add_row(*row)
    out.print(table)
    for note in plan.notes:
        out.print(note, markup=False)
    for problem in plan.problems:
        typer.echo(f"problem: {problem}", err=True)
