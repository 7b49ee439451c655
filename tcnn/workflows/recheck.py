"""Verify a checkpoint file against its source, which is found by the file's metadata; on noise, or on a directory of
images."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.files import is_ours
from tcnn.checkpoints.opening import check_exists, open_checkpoint, open_model, refuse_arguments
from tcnn.config import ConversionConfig, VerificationConfig
from tcnn.config.conversion import OF_TRAINING
from tcnn.conversion.report import refuse_folded
from tcnn.conversion.surgery import without_stride
from tcnn.data.decode import UnreadableImage, mode_of
from tcnn.data.sources.folder import select_files
from tcnn.data.transforms import evaluation_transform, load_image
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.models.randomise import noise_images, randomised
from tcnn.models.running import usable_device, where_it_runs
from tcnn.models.trace import input_settings
from tcnn.verification.explain import explain
from tcnn.verification.explanation import Explanation
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import verify_where_it_runs
from tcnn.workflows.pipeline import Progress, Source, open_source
from tcnn.zoo.catalogue import is_converted, is_weights_file
from tcnn.zoo.own_network import network_name

TCNNS = (*ConversionConfig.model_fields, *OF_TRAINING)
"""Model arguments that a T-CNN has and its CNN has not."""


class Pair(NamedTuple):
    """A model and what it is compared with."""

    reference: nn.Module
    model: nn.Module
    images: Tensor | None
    random: bool
    """Whether the weights are random: fresh networks hide many errors."""


def recheck(
    path: str | Path,
    settings: VerificationConfig,
    against: str | None = None,
    weights: Path | None = None,
    images: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda step: None,
) -> VerificationReport:
    """Compare a checkpoint with the source recorded in it, or with another one; arguments as for `open_pair`.

    Raises: `CheckpointError`, `RequestError`, `DownloadError`; a difference is in the report, not raised.
    """
    return compare(open_pair(path, against, weights, images, device, progress), settings, progress)


def compare(pair: Pair, settings: VerificationConfig, progress: Progress = lambda step: None) -> VerificationReport:
    """Compare a converted model with its source; in float32 only where one of them does not run in float64."""
    return verify_where_it_runs(
        pair.reference, pair.model, settings, pair.images, randomise=pair.random,
        progress=lambda step: progress(f"verifying {step}"),
    )  # fmt: skip


def is_plain(name: str) -> bool:
    """Whether a name is that of a model in which nothing may be converted, rather than of a T-CNN."""
    return not is_ours(name) and not is_converted(name)


def open_pair(
    path: str | Path,
    against: str | None = None,
    weights: Path | None = None,
    images: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda step: None,
    **model_args: Any,
) -> Pair:
    """A checkpoint's model and the source recorded in it, or another one.

    Args:
        against: a timm name (with its pretrained weights), `local-dir:PATH`, `hf-hub:ORG/NAME`, or a CNN's file or run.
        weights: the source's weights file; needed again when the checkpoint was made from a file.
        images: a directory of images to compare on.
        model_args: arguments for `timm.create_model` of what is built of a name.

    Raises: `CheckpointError`, `RequestError`, `DownloadError`.
    """
    place = usable_device(device)
    if against is not None:
        check_exists(against)  # before anything is read or downloaded for it
    built = not is_ours(path)
    if against is not None and is_ours(against) and not built:
        refuse_arguments(against, model_args)  # neither of the two is built of a name
    stored = _stored_cnn(against, weights)
    progress("reading")
    content = open_checkpoint(path, **(model_args if built or against is None else {}))
    refuse_folded(content.conversion, str(path), "verify")
    if not content.conversion.layers:
        raise _nothing_to_verify(path, content)
    model = checkpoint.assemble(content, name=str(path)).to(place)
    recorded = Source.model_validate(content.section("source")) if "source" in content.metadata else None
    unknown = against is None and weights is None
    if unknown and "training" in content.metadata:
        raise RequestError(
            f"{path}: has been trained since it was converted, so it equals no source any more; to compare it with a "
            "model all the same, name that with --against MODEL"
        )
    if unknown and (recorded is None or recorded.weights == "file"):
        raise _source_not_known(path, content, recorded)
    random = recorded is not None and recorded.weights == "random" and unknown
    progress("building the source")
    name = against or network_name() or (recorded.name if recorded else content.conversion.base_model)
    # Those of the CNN, checked in `assemble`; a network of one's own is built without.
    args: Any = {} if against or network_name() else dict(content.conversion.model_args)
    args |= {key: value for key, value in model_args.items() if key not in TCNNS}
    if recorded is not None and recorded.num_classes is not None and name != network_name():
        args["num_classes"] = recorded.num_classes
    if stored is not None:
        source, digest = stored.to(place), None
    else:
        source, origin = open_source(name, not random, weights, recorded.seed if recorded else 0, place, **args)
        digest = origin.digest
    _refuse_other_classes(model, str(path), source, against or str(weights or content.conversion.base_model))
    known = recorded is not None and recorded.digest is not None
    if against is None and recorded is not None and known and digest != recorded.digest:
        raise RequestError(
            f"{path}: the {'random weights drawn' if random else 'weights found'} for {name} are not those it was "
            "converted from; name the right ones with --weights or --against"
        )
    config = content.conversion.config
    reference = source if config.stride == "keep" else without_stride(source, config)
    batch = None if images is None else load_images(images, model).to(place)
    return Pair(reference, model, batch, random)


def _source_not_known(path: str | Path, content: checkpoint.Checkpoint, recorded: Source | None) -> RequestError:
    """What is said of a file whose source has to be named, by what wrote it."""
    if recorded is not None and recorded.training is not None:
        return RequestError(f"{path}: made from a CNN that was fine-tuned; name its run or file with --against MODEL")
    if recorded is not None:
        return RequestError(f"{path}: made from a weights file; give it again with --weights FILE, or --against MODEL")
    if "weights" in content.metadata and content.verification is not None:
        return RequestError(
            f"{path}: written by a run before its first step, and compared then with its CNN (relative error "
            f"{content.verification.passes[0].logits.worst:.1e}), "
            "whose new classifier is in no other file; to compare it with another model, name that with --against MODEL"
        )
    how = "of timm's train.py" if is_weights_file(path) or "weights" in content.metadata else "saved from Python"
    return RequestError(f"{path}: {how}, which records no source; name it with --against MODEL, or give --weights FILE")


def _nothing_to_verify(path: str | Path, content: checkpoint.Checkpoint) -> RequestError:
    """What is said of a file without attention: what it is, and what can be verified instead."""
    if "fold" in content.metadata:
        return RequestError(
            f"{path}: was folded completely, so it is a CNN without attention to verify; verify the checkpoint that it "
            "was folded from, which tcnn fold compared it with"
        )
    return RequestError(
        f"{path}: a CNN, in which nothing is converted, so there is nothing to verify; convert it: tcnn convert {path} "
        "OUT, which verifies what it writes"
    )


def _stored_cnn(name: str | None, weights: Path | None) -> nn.Module | None:
    """The CNN of a file or run, None for any other name; raises `RequestError` for a T-CNN."""
    if name is None or not is_ours(name):
        return None
    model = open_model(name, weights)
    report = getattr(model, "conversion_report", None)
    if report is not None and report.layers:
        raise RequestError(f"--against {name}: expected a CNN, found a T-CNN; name the CNN that it was made from")
    return model


def _refuse_other_classes(model: nn.Module, name: str, source: nn.Module, other: str) -> None:
    """Raise `RequestError` for models whose logits are of other classes: any error of these would be infinite."""
    own, its = (getattr(each, "num_classes", None) for each in (model, source))
    if own != its and own is not None and its is not None:
        raise RequestError(
            f"{name}: has {some(own, 'output')} and {other} {its}, so their logits cannot be compared; give {other} as "
            f"many, by a new classifier, with --model-kwargs num_classes={own}"
        )


def open_two(
    name: str,
    against: str,
    weights: Path | None = None,
    images: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda step: None,
    **model_args: Any,
) -> Pair:
    """Two models of one architecture that need not be converted, by their names; arguments as for `open_pair`."""
    place = usable_device(device)
    progress("building the models")
    check_exists(against)
    stored = _stored_cnn(against, weights)
    model = open_source(name, True, None, 0, place, **model_args)[0]
    reference = open_source(against, True, weights, 0, place, **model_args)[0] if stored is None else stored.to(place)
    return Pair(reference, model, None if images is None else load_images(images, reference).to(place), False)


def explained(pair: Pair, settings: VerificationConfig) -> Explanation:
    """Why the two differ, on the pair's images or on noise."""
    batch = noise_images(pair.model, settings) if pair.images is None else pair.images
    bounds = {torch.float32: settings.tolerance_float32, torch.float64: settings.tolerance_float64}
    with torch.no_grad(), randomised(pair.reference, pair.model, batch, settings.seed, enabled=pair.random):
        return where_it_runs(lambda float64: explain(pair.reference, pair.model, batch, bounds, float64))


def load_images(directory: Path, model: nn.Module, limit: int = 32) -> Tensor:
    """Load up to `limit` images, evenly spread over a directory, preprocessed for the model: (B, C, H, W).

    Raises `RequestError` when there is no image, or a file that is none.
    """
    if not directory.is_dir():
        raise RequestError(
            f"{directory}: expected a directory of images, found {'a file' if directory.exists() else 'nothing'}"
        )
    settings = input_settings(model)
    transform, mode = evaluation_transform(settings), mode_of(settings["input_size"][0])
    try:
        return torch.stack([load_image(file, transform, mode) for file in select_files(directory, limit)])
    except UnreadableImage as error:
        raise RequestError(f"{error.filename}: not a readable image ({error.reason}); remove it") from error
