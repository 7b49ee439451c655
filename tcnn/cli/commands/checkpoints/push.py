"""`tcnn push`: publish a T-CNN on the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from tcnn.cli.options.shared import AsJson, TcnnCheckpoint
from tcnn.cli.output import console
from tcnn.processes import loading


def command(
    source: TcnnCheckpoint,
    repository: Annotated[
        str, typer.Argument(help="The repository; created if it does not exist.", metavar="ORG/NAME")
    ],
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="Output of `tcnn evaluate --json`, for the card; repeatable.", metavar="FILE"),
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="An image, or a folder of images, for attention maps.", metavar="DIR")
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Plot where heads attend, if matplotlib is installed.")
    ] = True,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also publish model.onnx, which runs without tcnn.")] = False,
    license: Annotated[
        str | None,
        typer.Option(help="The Hub's name of the licence; default: that of the source weights.", metavar="NAME"),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a newly created repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="An existing branch to commit to.", metavar="BRANCH")] = None,
    pull_request: Annotated[
        bool, typer.Option("--pull-request", help="Open a pull request instead of committing.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Commit message.", metavar="TEXT")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Prepare and list every file without contacting the Hub.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish on the Hugging Face Hub: weights, timm's config, a model card with accuracy and pictures, in one commit.

    Uses the token stored by `hf auth login`, or HF_TOKEN.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # there is one already
    with loading():
        from tcnn.publishing.push import push_to_hub

    with console.steps(4, quiet=as_json) as step:
        report = push_to_hub(
            source, repository, evaluations=evaluation or (), images=images, pictures=pictures, onnx=onnx,
            license=license, private=private, revision=revision, create_pr=pull_request, message=message,
            dry_run=dry_run, say=step,
        )  # fmt: skip
    if as_json:
        console.print_json(report)
    else:
        console.stdout().print(str(report), markup=False, soft_wrap=True)
