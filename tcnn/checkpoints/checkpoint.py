"""Save and load a model as one safetensors file: `save` and `load`.

`__metadata__` contains strings only: `format`, `tcnn_version`, `base_model`, and as JSON `conversion`, `verification`,
`pretrained_cfg`, `label_names`, further sections (`training`), and `digest`, a SHA-256 over all of these and every
tensor, so that a single flipped bit is detected.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.models._input import get_model_args
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.checkpoints.files import (
    LEARNED_FROM,
    existing,
    keep_record,
    not_a_model,
    record_in,
    record_kept,
    refuse_in_files,
)
from tcnn.config.conversion import OF_TRAINING
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import rebuild
from tcnn.conversion.ties import still_tied
from tcnn.errors import CheckpointError, RequestError, one_line, out_of_memory, shorten
from tcnn.files import path_of, replacing
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.checks import named, refuse_prepared, refuse_unwritable, refuse_without_shapes, unwrapped
from tcnn.models.running import usable_device
from tcnn.models.trace import meta_copy
from tcnn.verification.report import VerificationReport
from tcnn.version import __version__
from tcnn.zoo.own_network import GIVE_SOURCE
from tcnn.zoo.sources import own_network

RESERVED = frozenset(
    {"format", "tcnn_version", "base_model", "conversion", "verification", "pretrained_cfg", "label_names", "digest"}
)
"""Metadata keys that `save` writes itself."""


class Checkpoint(NamedTuple):
    """Tensors and metadata of a checked file, from which `assemble` builds the model."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    conversion: ConversionReport
    verification: VerificationReport | None

    def section(self, name: str) -> Any:
        """A JSON section of the metadata, or None."""
        return json.loads(self.metadata[name]) if name in self.metadata else None


@typed()
def save(
    model: nn.Module,
    path: str | Path,
    verification: VerificationReport | None = None,
    sections: dict[str, object] | None = None,
    force: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Save a converted model to one safetensors file, atomically.

    Args:
        model: what `tcnn.convert` (or `load`) returned, trained further or not.
        verification: the report to store with it.
        sections: further metadata, each value JSON-serialisable.
        force: replace an existing file.
        check: called with the temporary file before it is renamed; if it raises, the disk stays as it was.

    Raises: `OutputError`, `StorageError`, `RequestError`.
    """
    path = path_of(path, "path")
    tensors, metadata = contents(model, verification, sections)
    with replacing(path, force) as temporary:
        save_file(tensors, temporary, metadata)
        if check is not None:
            check(temporary)
    return path


def contents(
    model: nn.Module, verification: VerificationReport | None = None, sections: dict[str, object] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a model's file."""
    model = unwrapped(model)
    report = getattr(model, "conversion_report", None)
    if not isinstance(report, ConversionReport):
        raise RequestError(
            f"{type(model).__name__} was not converted by tcnn: call tcnn.convert first, then save its result"
        )
    if not isinstance(verification, VerificationReport | None):
        raise RequestError(f"verification: expected what tcnn.verify returned, found {named(verification)}")
    refuse_prepared(model, "save", but=(FoldedGPSA2d,))
    refuse_unwritable(model)
    cfg = {k: v for k, v in (getattr(model, "pretrained_cfg", None) or {}).items() if k != "state_dict"}
    layers = tuple(layer.model_copy(update={"tied": still_tied(model, layer)}) for layer in report.layers)
    report = report.model_copy(update={"model_args": _model_args(model, report), "layers": layers})
    tensors = unshared(model.state_dict())
    metadata = {
        "format": "pt",
        "tcnn_version": __version__,
        "base_model": report.base_model,
        "conversion": report.model_dump_json(),
        "pretrained_cfg": json.dumps(cfg, default=str),
    }
    if verification is not None:
        metadata["verification"] = verification.model_dump_json()
    if cfg.get("label_names"):
        metadata["label_names"] = json.dumps(cfg["label_names"])
    for name, value in (sections or {}).items():
        if name in RESERVED:
            raise RequestError(f"section {name!r}: the name is tcnn's own; choose another")
        try:
            metadata[name] = json.dumps(value)
        except TypeError as error:
            raise RequestError(f"section {name!r}: expected plain JSON values ({error})") from error
    if (record := record_kept(model)) is not None and record_in(metadata) is None:
        metadata[LEARNED_FROM] = json.dumps(record)
    metadata["digest"] = digest(tensors, metadata)
    return tensors, metadata


def unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU without shared memory, as safetensors needs them; only shared ones are copied."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor
    return tensors


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
        source: the architecture that was converted, for models that timm does not know; it is not changed.
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
    report = checkpoint.conversion
    classes = len((record_in(checkpoint.metadata) or {}).get("class_names") or ())
    base = architecture(report, name, model_args, classes) if source is None else unwrapped(source)
    refuse_without_shapes(base)
    try:
        model = rebuild(meta_copy(base, buffers=False), report)
    except RequestError as error:
        raise CheckpointError(f"{name}: does not fit {type(base).__name__}: {error}") from error
    try:
        model.load_state_dict(_tie_parameters(model, checkpoint.tensors, name), strict=True, assign=True)
    except (RuntimeError, KeyError) as error:  # quantised layers ask for what is not there
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        raise CheckpointError(f"{name}: does not fit {report.base_model}: {shorten(reason)}") from error
    if cfg := checkpoint.section("pretrained_cfg"):
        merged: Any = {**(getattr(model, "pretrained_cfg", None) or {}), **cfg}
        model.pretrained_cfg = model.default_cfg = merged
    keep_record(model, checkpoint.metadata)
    return model.eval()


def _tie_parameters(model: nn.Module, tensors: dict[str, Tensor], file: str) -> dict[str, Tensor]:
    """Tie the parameters that the architecture shares: assigning by name would give each name its own tensor."""
    tensors = dict(tensors)
    shared: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tensors and tensors[name].shape == parameter.shape:
            new = nn.Parameter(tensors[name], parameter.requires_grad)
            first, kept = shared.setdefault(id(parameter), (name, new))
            if kept is not new and not torch.equal(kept.nan_to_num(), new.nan_to_num()):
                raise CheckpointError(
                    f"{file}: {first} and {name} are one parameter of {type(model).__name__}, and differ in the file; "
                    "give a source that keeps them apart"
                )
            tensors[name] = kept
    return tensors


def architecture(
    report: ConversionReport, name: str, model_args: dict[str, object], classes: int | None = None
) -> nn.Module:
    """Build the source architecture of a report, with arbitrary weights: the network named for all files, or timm's.

    Args:
        classes: of a network of one's own, where known; the report has those of timm's.
    """
    if (own := own_network(classes)) is not None:
        return unwrapped(own)
    base, args = report.base_model, {**report.model_args, **model_args}
    refuse_in_files(name, report.model_args)
    if not timm.is_model(base.partition(".")[0]):
        raise CheckpointError(f"{name}: made from {base}, which timm does not know; {GIVE_SOURCE}")
    try:
        return timm.create_model(base, pretrained=False, **args)
    except Exception as error:
        told, reason = shorten(str(args), 160), "no memory" if out_of_memory(error) else one_line(error)
        raise CheckpointError(f"{name}: timm {timm.__version__} cannot build {base} with {told}: {reason}") from error


def _model_args(model: nn.Module, report: ConversionReport) -> dict[str, object]:
    """Arguments that build the *source* architecture as it is now (for example with a replaced classifier)."""
    if not getattr(model, "pretrained_cfg", None):
        return report.model_args
    ours = {*type(report.config).model_fields, *OF_TRAINING}
    args = {k: v for k, v in get_model_args(model).items() if k not in ours}
    try:
        json.dumps(args)
    except TypeError as error:
        raise RequestError(
            f"a model argument cannot be stored in the file ({error}); build the model with plain values"
        ) from error
    return args
