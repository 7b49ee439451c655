"""Save and load a model as one safetensors file: `save` and `load`.

`__metadata__` contains strings only: `format`, `tcnn_version`, `base_model`, and as JSON `conversion`, `verification`,
`pretrained_cfg`, `label_names`, further sections (`training`), and `digest`, a SHA-256 over all of these and every
tensor, so that a single flipped bit is detected.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.checkpoints.architecture import (
    architecture,
    describe_model,
    edits_in,
    fit_classifier,
    note_of,
    rebuilt,
    refuse_other_source,
    refuse_without_source,
    way_out,
)
from tcnn.checkpoints.files import (
    LEARNED_FROM,
    as_section,
    existing,
    finite,
    from_json,
    keep_record,
    not_a_model,
    record_in,
    record_kept,
)
from tcnn.checkpoints.filling import BUFFERS, SHARED, beside, filled
from tcnn.checkpoints.merging import APART, MERGED, merging_in
from tcnn.conversion.report import ConversionReport
from tcnn.errors import CheckpointError, RequestError
from tcnn.files import path_of, replacing
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.checks import (
    named,
    not_converted,
    refuse_prepared,
    refuse_unwritable,
    refuse_without_shapes,
    unwrapped,
)
from tcnn.models.running import usable_device
from tcnn.state import EXTRA, VERSIONS, parts, unshared
from tcnn.verification.report import VerificationReport
from tcnn.version import __version__
from tcnn.wording import warn_caller
from tcnn.zoo.own_network import network_name

EDITED = "edited"
"""The section of what in a model is not as timm builds it: such a file loads with a source only."""
RESERVED = frozenset(
    {
        "format", "tcnn_version", "base_model", "conversion", "verification", "pretrained_cfg", "label_names", "digest",
        EDITED, MERGED, APART, BUFFERS, SHARED, VERSIONS, EXTRA,
    }
)  # fmt: skip
"""Metadata keys that `save` writes itself."""


class Checkpoint(NamedTuple):
    """Tensors and metadata of a checked file, from which `assemble` builds the model."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    conversion: ConversionReport
    verification: VerificationReport | None

    def section(self, name: str) -> Any:
        """A JSON section of the metadata, or None."""
        return from_json(self.metadata[name]) if name in self.metadata else None


@typed()
def save(
    model: nn.Module,
    path: str | Path,
    verification: VerificationReport | None = None,
    sections: Mapping[str, object] | None = None,
    force: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Save a converted model to one safetensors file, atomically.

    Args:
        model: what `tcnn.convert` (or `load`) returned, trained further or not.
        verification: the report to store with it.
        sections: further metadata, each value as JSON has it: without NaN and infinity.
        force: replace an existing file.
        check: called with the temporary file before it is renamed; if it raises, the disk stays as it was.

    Warns of a timm model that was changed by hand, as by another activation: its file loads with a source only.

    Raises: `OutputError`, `StorageError`, `RequestError`.
    """
    path = path_of(path, "path")
    return write(contents(model, verification, sections, warn_caller), path, force, check)


def write(
    content: tuple[dict[str, Tensor], dict[str, str]], path: Path, force: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Path:  # fmt: skip
    """Write `contents` to one file, as `save` does; raises `RequestError` for more metadata than safetensors takes."""
    tensors, metadata = content
    with replacing(path, force) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:
            if "header too large" not in str(error):
                raise
            name, most = max(((key, len(value)) for key, value in metadata.items()), key=lambda one: one[1])
            raise RequestError(
                f"{path}: expected less than 100 MB of metadata, which is what safetensors takes, found "
                f"{most / 1e6:.0f} MB in the section {name!r} alone; keep large data in a file of its own"
            ) from error
        if check is not None:
            check(temporary)
    return path


def contents(
    model: nn.Module, verification: VerificationReport | None = None, sections: Mapping[str, object] | None = None,
    say: Callable[[str], object] = lambda note: None,
) -> tuple[dict[str, Tensor], dict[str, str]]:  # fmt: skip
    """The tensors and the metadata of a model's file; `say` is called with what a user should know of it."""
    model = unwrapped(model)
    report = getattr(model, "conversion_report", None)
    if not isinstance(report, ConversionReport):
        raise not_converted(model)
    if not isinstance(verification, VerificationReport | None):
        raise RequestError(f"verification: expected what tcnn.verify returned, found {named(verification)}")
    refuse_prepared(model, "save", but=(FoldedGPSA2d,))
    refuse_unwritable(model)
    described = describe_model(model, report)
    report, cfg, edited, merging = described
    state = parts(model.state_dict())
    tensors = unshared(state.tensors)
    metadata = {
        "format": "pt",
        "tcnn_version": __version__,
        "base_model": report.base_model,
        "conversion": report.model_dump_json(),
        "pretrained_cfg": json.dumps(finite(cfg), default=str),
    }
    try:
        metadata |= state.metadata()
    except TypeError as error:
        raise RequestError(f"{type(model).__name__}: `_metadata` of its state is no JSON ({error})") from error
    metadata |= beside(model, tensors)
    if merging is not None:
        metadata |= merging.sections()
    if (note := note_of(described)) is not None:
        metadata[EDITED] = json.dumps(edited)
        if network_name() is None:  # else it is given already
            say(note)
    if verification is not None:
        metadata["verification"] = verification.model_dump_json()
    if cfg.get("label_names"):
        metadata["label_names"] = json.dumps(cfg["label_names"])
    for name, value in (sections or {}).items():
        if name in RESERVED:
            raise RequestError(f"section {name!r}: the name is tcnn's own; choose another")
        metadata[name] = as_section(name, value)
    if (record := record_kept(model)) is not None and record_in(metadata) is None:
        metadata[LEARNED_FROM] = json.dumps(finite(record))
    metadata["digest"] = digest(tensors, metadata)
    return tensors, metadata


def digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """SHA-256 digest over the metadata (all but the digest) and every tensor's name, dtype, shape and bytes."""
    sha = hashlib.sha256()
    for key in sorted(metadata.keys() - {"digest"}):
        sha.update(f"{key}\0{metadata[key]}\0".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{sha.hexdigest()}"


@torch.inference_mode(False)
def read(path: str | Path) -> Checkpoint:
    """Read and check a file, or that of a directory (`checkpoint_file`); raises `CheckpointError` with one line."""
    file = existing(path_of(path, "path"))
    try:
        with safe_open(file, framework="pt") as handle:
            metadata = dict(handle.metadata() or {})
            # Copies: a view of the file would change with it, and its alignment changes the last bit of some products.
            tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{file}: not a whole safetensors file ({reason}); copy or download it again") from error
    if "tcnn_version" not in metadata or "conversion" not in metadata:
        raise CheckpointError(not_a_model(file, metadata))
    found = digest(tensors, metadata)
    if metadata.get("digest") != found:
        raise CheckpointError(
            f"{file}: altered since it was written (digest {found[:19]}…, "
            f"expected {metadata.get('digest', 'none')[:19]}…); copy or download it again"
        )
    try:
        return of_contents(tensors, metadata)
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: written by tcnn {metadata['tcnn_version']}, this is {__version__} and cannot read its records"
        ) from error


def of_contents(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Checkpoint:
    """A checkpoint of what `contents` made of a model, or a file held; raises pydantic's `ValidationError`."""
    raw = metadata.get("verification")
    return Checkpoint(
        tensors, metadata, ConversionReport.model_validate_json(metadata["conversion"]),
        VerificationReport.model_validate_json(raw) if raw else None,
    )  # fmt: skip


def load(
    path: str | Path, source: nn.Module | None = None, device: torch.device | str = "cpu", **model_args: object
) -> nn.Module:
    """Load the model of a file or hub-layout directory, in evaluation mode.

    Args:
        source: the architecture that was converted, or the converted model, for models that timm does not know, or
            that were changed by hand; it is not changed.
        device: the device of the model.
        model_args: arguments for `timm.create_model` in addition to those of the file (`drop_path_rate`, …).

    Raises: `CheckpointError` for a file that is truncated, altered, foreign, or of another architecture.
    """
    if source is not None and model_args:
        raise RequestError(f"{next(iter(model_args))}: the source is built already; give it to what builds that")
    place = device if str(device) == "meta" else usable_device(device)
    return assemble(read(path), source, str(path), **model_args).to(place)


@torch.inference_mode(False)
def assemble(
    checkpoint: Checkpoint, source: nn.Module | None = None, name: str = "checkpoint", **model_args: object
) -> nn.Module:
    """Build the model of a checkpoint that was read."""
    report, edited = checkpoint.conversion, edits_in(checkpoint.metadata.get(EDITED), name)
    merging = merging_in(checkpoint.metadata, name)
    classes = len((record_in(checkpoint.metadata) or {}).get("class_names") or ())
    if source is None and network_name() is None:
        refuse_without_source(edited, report, name)
    base = architecture(report, name, model_args, classes) if source is None else unwrapped(source)
    refuse_without_shapes(base)
    try:
        model = rebuilt(base, report, merging, checkpoint.tensors.keys())
    except RequestError as error:
        raise CheckpointError(f"{name}: does not fit {type(base).__name__}: {error}") from error
    if source is not None:
        fit_classifier(model, classes or report.model_args.get("num_classes"), checkpoint.tensors)
    refuse_other_source(model, edited, name)
    found = checkpoint.tensors, checkpoint.section("pretrained_cfg")
    advice = "" if source is not None else f"; {way_out(report, *found)}"
    model = filled(model, checkpoint.tensors, checkpoint.metadata, name, advice)
    if cfg := checkpoint.section("pretrained_cfg"):
        merged: Any = {**(getattr(model, "pretrained_cfg", None) or {}), **cfg}
        model.pretrained_cfg = model.default_cfg = merged
    keep_record(model, checkpoint.metadata)
    return model.eval()
