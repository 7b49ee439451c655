"""`push_to_hub`: publish a T-CNN as a repository on the Hugging Face Hub, in one commit, or show what it would hold."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils._validators import validate_repo_id
from torch import nn

from tcnn.analysis.inspect import inspect
from tcnn.analysis.plots import has_plots, require_plots
from tcnn.arguments import typed
from tcnn.checkpoints import checkpoint, hub
from tcnn.checkpoints.files import checkpoint_file, is_ours, unfinished
from tcnn.checkpoints.hub import model_card
from tcnn.checkpoints.opening import open_checkpoint
from tcnn.config.base import Record
from tcnn.conversion.report import refuse_folded
from tcnn.errors import DownloadError, NoAttentionError, RequestError, one_line
from tcnn.exporting.export import export
from tcnn.files import path_of, scratch_directory
from tcnn.formatting import Printed, scale
from tcnn.hugging_face import hub_error_of
from tcnn.models.checks import unwrapped
from tcnn.publishing import accuracy
from tcnn.publishing.accuracy import Accuracy, literal
from tcnn.training.runs.callbacks import Say
from tcnn.verification.report import VerificationReport
from tcnn.version import __version__

LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
SHOWN = 2
"""Pictures whose attention maps are drawn."""


class PushedFile(Record):
    """A file of the repository."""

    name: str
    bytes: int


class PushReport(Printed, Record):
    """What was published, or with a dry run would be."""

    repository: str
    url: str
    revision: str | None
    commit: str | None
    """The commit's address; null in a dry run."""
    pull_request: str | None
    files: tuple[PushedFile, ...]
    card: str
    """The model card."""

    def __str__(self) -> str:
        """The files with their sizes, the card of a dry run, and where it is."""
        files = [f"{scale(file.bytes):>9}B  {file.name}" for file in self.files]
        if self.commit is None:
            return "\n".join([*files, "", self.card, f"dry run: nothing was published at {self.url}"])
        load = f'load it: timm.create_model("hf-hub:{self.repository}", pretrained=True), with tcnn imported'
        return "\n".join([*files, f"published: {self.pull_request or self.commit}", load])


class Drawn(NamedTuple):
    """A picture of the card."""

    file: str
    caption: str


@typed("repository")
def push_to_hub(
    source: str | Path | nn.Module,
    repository: str,
    *,
    evaluations: Sequence[str | Path] = (),
    images: str | Path | None = None,
    pictures: bool = True,
    onnx: bool = False,
    license: str | None = None,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    message: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
    say: Say = lambda message: None,
) -> PushReport:
    """Publish a T-CNN, or a trained model that was not converted, on the Hugging Face Hub, in one commit.

    The commit has weights, config, card and pictures. Afterwards
    ``timm.create_model("hf-hub:ORG/NAME", pretrained=True)`` builds the model wherever tcnn is imported.

    Args:
        source: a tcnn checkpoint, a run's directory, a directory in timm's hub layout, or a converted timm model.
        repository: ORG/NAME; it is made where there is none, and what else it contains stays.
        evaluations: files of `tcnn evaluate --json`: rows of the card's accuracy table. A run's own is there anyway.
        images: a picture or a folder of pictures, for attention maps in the card.
        pictures: whether the card has any; they need matplotlib, and are left out without it.
        onnx: also write model.onnx, which needs neither tcnn nor PyTorch.
        license: the Hub's name of it; default that of the source weights.
        private: make a private repository, if it is made.
        revision: branch to commit to; it must be there.
        create_pr: open a pull request instead.
        token: default the one that `hf auth login` has kept, or `HF_TOKEN`.
        dry_run: prepare everything, ask the Hub nothing.
        say: called with what is being done, one line each.

    Raises: `RequestError` for what cannot be published or is refused by the Hub, `DownloadError` where the Hub cannot
    be reached, and the errors of loading and exporting.
    """
    _check(repository, license)
    if images is not None and not pictures:
        raise RequestError("images: attention maps are pictures; give images, or no pictures")
    rows = accuracy.of_files([path_of(file, "evaluations") for file in evaluations])
    model, verification, sections = _opened(source)
    record = getattr(model, "conversion_report", None)
    if record is not None:
        refuse_folded(record, str(source) if not isinstance(source, nn.Module) else record.base_model, "publish")
    with scratch_directory() as temporary:
        folder = hub.save_directory(model, temporary / "repository", verification, sections)
        rows = [*rows, *accuracy.of_checkpoint(sections, model.conversion_report)]  # type: ignore[arg-type]
        say("drawing pictures")
        drawn = draw(model, images, folder) if pictures else []
        if onnx:
            say("exporting to ONNX")
            export(model, folder / "model.onnx")
        card = model_card(
            model, verification, sections, place=f"hf-hub:{repository}", title=repository.partition("/")[2],
            license=license, parts=_parts(rows, drawn, onnx),
            results=[_result(row) for row in rows if _is_own(row, source) and not row.trained_on],
        )  # fmt: skip
        (folder / "README.md").write_text(card, encoding="utf-8")
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        report = PushReport(
            repository=repository, url=f"{constants.ENDPOINT}/{repository}", revision=revision, commit=None,
            pull_request=None, card=card,
            files=tuple(PushedFile(name=str(f.relative_to(folder)), bytes=f.stat().st_size) for f in files),
        )  # fmt: skip
        if dry_run:
            return report
        say("uploading")
        operations = [CommitOperationAdd(name.name, folder / name.name) for name in report.files]
        return _uploaded(report, operations, private, create_pr, message, token)


def _check(repository: object, license: str | None) -> None:
    if not isinstance(repository, str):
        raise RequestError(f"repository: expected text as ORG/NAME, found a value of type {type(repository).__name__}")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise RequestError(f"{repository!r}: expected a repository as ORG/NAME ({one_line(error)})") from error
    if repository.count("/") != 1:
        raise RequestError(f"{repository!r}: expected a repository as ORG/NAME, such as my-team/t_resnet50d")
    if license is not None and not LICENSE.fullmatch(license):
        raise RequestError(f"license: expected the Hub's name of one, such as apache-2.0 or mit, found {license!r}")


def _opened(source: str | Path | nn.Module) -> tuple[nn.Module, VerificationReport | None, dict[str, Any]]:
    """The model, its verification, and the further sections of its file."""
    if not isinstance(source, str | Path):
        return unwrapped(source), None, {}
    if is_ours(str(source)) and checkpoint_file(source) is None:
        begun = unfinished(source)
        raise RequestError(begun or f"{source}: no such checkpoint; convert first: tcnn convert MODEL OUT.safetensors")
    content = open_checkpoint(str(source))
    base = content.conversion.base_model
    if not timm.is_model(base.partition(".")[0]):
        raise RequestError(
            f"{source}: made from {base}, which timm does not know, so that nobody could load it from the Hub by its "
            "name; upload the file as it is, with `hf upload`, beside the code that builds the network"
        )
    model = checkpoint.assemble(content, None, str(source))
    sections = {name: content.section(name) for name in content.metadata.keys() - checkpoint.RESERVED}
    return model, content.verification, sections


def _is_own(row: Accuracy, source: str | Path | nn.Module) -> bool:
    """Whether a row of the accuracy table is this model's; only its own stand in the card's head.

    A measurement is if the file that it names is the one that is published, and not one called alike.
    """
    if row.measured is None:
        return row.model == accuracy.THIS
    if isinstance(source, nn.Module):
        return False
    own, other = checkpoint_file(source), checkpoint_file(row.measured)
    return own is not None and other is not None and own.samefile(other)


def _parts(rows: Sequence[Accuracy], drawn: Sequence[Drawn], onnx: bool) -> list[str]:
    parts = []
    if rows:
        parts.append(
            f"## Accuracy\n\n{accuracy.table(rows)}\n\n"
            "Intervals are Wilson's, over images; "
            "that of a difference between two models on the same images is smaller."
        )
    if drawn:
        parts.append(
            "## Attention\n\n"
            + "\n\n".join(f"![{literal(each.caption)}]({each.file})\n\n{literal(each.caption)}" for each in drawn)
        )
    if onnx:
        parts.append(
            "`model.onnx` runs in onnxruntime: images normalised as `config.json` says, (N, C, H, W), float32."
        )
    return parts


def _result(row: Accuracy) -> EvalResult:
    """A row as the Hub shows it beside the card."""
    return EvalResult(
        task_type="image-classification", dataset_type=re.sub(r"\W+", "-", row.data).strip("-").lower() or "images",
        dataset_name=row.data, metric_type="accuracy", metric_value=round(row.top1, 4),
        metric_name=f"top-1, {row.model}",
    )  # fmt: skip


def _uploaded(
    report: PushReport,
    operations: Sequence[CommitOperationAdd],
    private: bool,
    create_pr: bool,
    message: str | None,
    token: str | None,
) -> PushReport:
    api = HfApi(endpoint=constants.ENDPOINT, token=token, library_name="tcnn", library_version=__version__)
    try:
        api.create_repo(report.repository, private=private or None, exist_ok=True)
        commit = api.create_commit(
            report.repository, operations, commit_message=message or "T-CNN, made by tcnn", revision=report.revision,
            create_pr=create_pr,
        )  # fmt: skip
    except Exception as error:  # of a client whose library has changed its name before
        cause = hub_error_of(error)
        if cause is None:
            raise
        if not isinstance(cause, HfHubHTTPError):
            reason = f"{constants.ENDPOINT}: cannot be reached ({one_line(cause)}); nothing was published"
            raise DownloadError(reason) from error
        if cause.response.status_code >= 500:
            raise DownloadError(
                f"{report.repository}: the Hub failed ({_reason(cause)}); nothing was published, though the repository "
                "may be there by now, without these files: push again"
            ) from error
        raise RequestError(f"{report.repository}: the Hub refused ({_reason(cause)})") from error
    return report.model_copy(update={"commit": commit.commit_url, "pull_request": commit.pr_url})


def _reason(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    advice = "; log in with `hf auth login`, or give a token that may write there" if status in (401, 403) else ""
    return f"{status}: {error.server_message or one_line(error)}{advice}"


def draw(model: nn.Module, images: str | Path | None, folder: Path) -> Sequence[Drawn]:
    """Draw where heads look, how far, and maps on images; without images nothing without attention or matplotlib.

    Raises: `EnvironmentFailure` for images without matplotlib, `NoAttentionError` for images without attention,
    `RequestError` for images that cannot be read.
    """
    if images is None and not has_plots():
        return ()
    require_plots()
    from tcnn.analysis.plots import style
    from tcnn.analysis.plots.gallery import inspection_plots

    try:
        found = inspect(model, images, shown=SHOWN)
    except NoAttentionError:
        if images is not None:
            raise
        return ()
    drawn = []
    for plot in inspection_plots(found):
        if plot.name.startswith("attention-") and "combined" not in plot.name:
            continue
        style.write(plot.figure, folder / plot.name, ("png",))
        drawn.append(Drawn(f"{plot.name}.png", plot.caption))
    return drawn
