"""Convert a model by name into a verified file, as `tcnn convert` and the service's `transform` job do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from tcnn.checkpoints import checkpoint, hub
from tcnn.checkpoints.checkpoint import assemble, read
from tcnn.checkpoints.files import checkpoint_file, is_stored, training_record
from tcnn.checkpoints.opening import architecture_of, open_model, refuse_arguments
from tcnn.config import ConversionConfig, VerificationConfig
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import convert, without_stride
from tcnn.errors import OutputError, RequestError, VerificationError
from tcnn.files import check_file, check_output, file_digest
from tcnn.models.checks import refuse_unwritable
from tcnn.models.running import usable_device
from tcnn.state import parts
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import verify, verify_where_it_runs
from tcnn.zoo.catalogue import cnn_of, is_converted, is_weights_file
from tcnn.zoo.own_network import network_name
from tcnn.zoo.sources import Say, create_source, create_structure

Progress = Callable[[str], None]
STEPS = 9
"""Number of `progress` calls of `convert_to_file`."""


class Source(BaseModel):
    """Origin of the weights; stored in the file so that `tcnn verify` can find them again."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    weights: Literal["pretrained", "random", "file", "module"]
    """module: those that a network of one's own is built with."""
    seed: int = 0
    num_classes: int | None = None
    digest: str | None = None
    training: dict[str, Any] | None = None
    """The record of the run that made the weights, if it was one of ours."""


class ConversionResult(BaseModel):
    """Result of `tcnn convert`, as `--json` prints it."""

    model: str
    output: str | None
    bytes: int | None = None
    sha256: str | None = None
    seconds: float
    conversion: ConversionReport
    verification: VerificationReport | None = None
    notes: tuple[str, ...] = ()
    """What was inferred: another class count than the model's default."""


def convert_to_file(
    name: str,
    output: Path,
    config: ConversionConfig | None = None,
    verification: VerificationConfig | None = None,
    *,
    pretrained: bool = True,
    weights: Path | None = None,
    num_classes: int | None = None,
    device: str = "cpu",
    force: bool = False,
    progress: Progress = lambda step: None,
    images: Callable[[nn.Module], Tensor | None] | None = None,
    **model_args: object,
) -> ConversionResult:
    """Create the source, convert it, verify, write, read back and verify again; atomically.

    Args:
        name: a timm name, `local-dir:PATH` or `hf-hub:ORG/NAME`; `t_resnet50d` is what resnet50d becomes. Or a file of
            timm's train.py, a run or checkpoint of ours of a CNN that was trained as it is, or the network that was
            named (`own_network`).
        output: a `.safetensors` file, or a directory for timm's hub layout.
        pretrained, weights, num_classes: as for `create_source`. Random weights are drawn from the config's seed.
        device: where the models are compared.
        images: gives for the model the batch (B, C, H, W) on which it is compared; noise where it gives None.
        model_args: arguments for `timm.create_model`; files bring their own.

    Raises: `VerificationError` when the models differ by more than the tolerance; nothing is written then.
    """
    started = time.monotonic()
    config = config or ConversionConfig()
    settings = verification or VerificationConfig()
    (check_output if is_directory(output) else check_file)(output, force)
    place = usable_device(device)
    name = cnn_of(name)
    stored = is_stored(name)
    if stored or is_weights_file(name):
        _refuse_other_weights(name, pretrained, weights)
        refuse_arguments(name, model_args)
    if is_weights_file(name):
        architecture, model_args = architecture_of(Path(name))
        if is_converted(architecture):
            return _adopt(Path(name), output, config, force)
        name, weights = architecture, Path(name)

    progress("building the source")
    notes: list[str] = []
    if stored:
        source, origin = _open_cnn(name, num_classes, place)
    else:
        source, origin = open_source(
            name, pretrained, weights, config.seed, place, num_classes=num_classes, say=notes.append, **model_args
        )
    if is_directory(output):
        hub.refuse_without_layout(source)  # before the work
    refuse_unwritable(source)
    progress("converting")
    model, report = convert(source, config)
    reference = source if config.stride == "keep" else without_stride(source, config)
    random = origin.weights == "random"
    batch = None if images is None else images(model)
    batch = None if batch is None else batch.to(place)
    verdict = verify_where_it_runs(
        reference, model, settings, batch, randomise=random, progress=lambda step: progress(f"verifying {step}")
    )
    raise_if_failed(verdict, name)

    def read_back(path: Path) -> None:
        progress("verifying the written file")
        # The same weights on the same images: the error can only be what it was, which rounding may have put above it.
        measured = [result.logits.worst for result in (verdict.passes[0], verdict.as_run) if result is not None]
        bound = max(settings.tolerance_float32, *(1.01 * error for error in measured))
        again = verify(
            reference,
            checkpoint.load(path, device=place),
            settings.model_copy(update={"float64": False, "tolerance_float32": bound}),
            batch,
            randomise=random,
        )
        raise_if_failed(again, str(output))

    progress("writing")
    sections: dict[str, object] = {"source": origin.model_dump(exclude_none=True), "weights": origin.weights}
    file = _write(model, output, verdict, sections, force, read_back)
    progress("done")
    return ConversionResult(
        model=name,
        output=str(output),
        bytes=file.stat().st_size,
        sha256=file_digest(file),
        seconds=round(time.monotonic() - started, 3),
        conversion=report,
        verification=verdict,
        notes=tuple(notes),
    )


def _refuse_other_weights(name: str, pretrained: bool, weights: Path | None) -> None:
    if weights is not None:
        raise RequestError(f"--weights: {name} brings weights of its own; leave it out, or name the architecture")
    if not pretrained:
        raise RequestError(f"--no-pretrained: {name} brings weights of its own; leave it out")


def _write(
    model: nn.Module,
    output: Path,
    verification: VerificationReport | None,
    sections: dict[str, object],
    force: bool,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint, or a directory in timm's hub layout; returns the file with the weights."""
    if is_directory(output):
        return hub.save_directory(model, output, verification, sections, force, check) / "model.safetensors"
    return checkpoint.save(model, output, verification, sections, force, check)


def _open_cnn(name: str, num_classes: int | None, device: torch.device) -> tuple[nn.Module, Source]:
    """The CNN that a checkpoint of ours holds, trained as it is, and the record of its weights."""
    content = read(name)
    if content.conversion.layers:
        raise RequestError(f"{name}: is a T-CNN already, there is nothing to convert")
    if num_classes is not None:
        raise RequestError(f"--num-classes: {name} has classes of its own, which it was trained for; leave it out")
    model = assemble(content, None, name)
    fingerprint = checkpoint.digest(parts(model.state_dict()).tensors, {})
    classes = getattr(model, "num_classes", None)
    base = content.conversion.base_model
    file = checkpoint_file(name)
    training = None if file is None else training_record(file)
    origin = Source(name=base, weights="file", num_classes=classes, digest=fingerprint, training=training)
    return model.to(device), origin


def _adopt(path: Path, output: Path, config: ConversionConfig, force: bool) -> ConversionResult:
    """Write a T-CNN that timm's train.py has trained as a checkpoint of ours; it equals no CNN: nothing is verified."""
    started = time.monotonic()
    if asked := [key for key, value in config if value != getattr(ConversionConfig(), key)]:
        raise RequestError(f"{path}: is a T-CNN already, so {', '.join(asked)} would have no effect; leave it out")
    notes: list[str] = []
    model = open_model(str(path), None, notes.append)
    file = _write(model, output, None, {"weights": "file"}, force)
    return ConversionResult(
        model=str(path), output=str(output), bytes=file.stat().st_size, sha256=file_digest(file),
        seconds=round(time.monotonic() - started, 3), conversion=model.conversion_report,  # type: ignore[arg-type]
        notes=(*notes, "a T-CNN already, and trained, so it was not compared with its CNN"),
    )  # fmt: skip


def plan(name: str, config: ConversionConfig, num_classes: int | None = None, **model_args: object) -> ConversionResult:
    """Dry run: what `convert_to_file` would convert; needs no weights and no network for a timm name."""
    started = time.monotonic()
    name = cnn_of(name)
    structure = name
    if is_stored(name):
        refuse_arguments(name, model_args)
        model, _ = _open_cnn(name, num_classes, torch.device("cpu"))
    else:
        if is_weights_file(name):
            refuse_arguments(name, model_args)
            structure, model_args = architecture_of(Path(name))
        if is_converted(structure):
            raise RequestError(f"{name}: is a T-CNN already, there is nothing to convert")
        model = create_structure(structure, num_classes, **model_args)
    report = convert(model, config).report
    return ConversionResult(model=name, output=None, seconds=round(time.monotonic() - started, 3), conversion=report)


def open_source(
    name: str,
    pretrained: bool,
    weights: Path | None,
    seed: int,
    device: torch.device,
    num_classes: int | None = None,
    say: Say = lambda note: None,
    **model_args: object,
) -> tuple[nn.Module, Source]:
    """Create the source CNN, and the record of the origin of its weights."""
    if num_classes is not None:
        model_args["num_classes"] = num_classes
    kind: Literal["pretrained", "random", "module"] = "pretrained" if pretrained else "random"
    if name == network_name():
        kind = "module"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_source(name, pretrained, weights, say, None, **model_args)
    fingerprint = checkpoint.digest(parts(model.state_dict()).tensors, {})
    training = None if weights is None else training_record(weights)
    origin = Source(
        name=name,
        weights="file" if weights else kind,
        seed=seed,
        num_classes=num_classes,
        digest=fingerprint,
        training=training,
    )
    return model.to(device), origin


def is_directory(output: Path) -> bool:
    """Whether the output is a hub-layout directory; raises `OutputError` for a file of another kind."""
    if output.suffix == ".safetensors":
        if output.is_dir():
            raise OutputError(f"{output}: is a directory; name a file, or a directory without .safetensors")
        return False
    if output.is_file():
        raise OutputError(f"{output}: is a file; timm's hub layout needs a directory, one file a name in .safetensors")
    if output.suffix and not output.is_dir():
        raise OutputError(
            f"{output}: expected a name that ends in .safetensors, or a directory, found {output.suffix!r}"
        )
    return True


def raise_if_failed(report: VerificationReport, what: str) -> None:
    """Raise `VerificationError` with one line unless the report passed."""
    failure = report.failure()
    if failure:
        raise VerificationError(f"{what}: {failure}; nothing was written")
