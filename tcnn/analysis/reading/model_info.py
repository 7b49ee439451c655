"""What is told of a model: the record, and how it follows from the head of its file or from the catalogue; no torch."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import computed_field
from safetensors import SafetensorError, safe_open

from tcnn.analysis.reading.rundirs import metadata
from tcnn.checkpoints.files import licence_of, not_a_model
from tcnn.config.base import Record
from tcnn.errors import RequestError, shorten
from tcnn.evaluation import scores
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import architecture, is_converted, no_model

TEMPERATURES = ("gate_temperature", "position_temperature", "temperature")
"""Names of the layers' τ in files; the last until version 0.2."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Verified(Record):
    """Result of the verification at conversion."""

    passed: bool
    errors: dict[str, float]
    """Relative error of the logits by dtype."""
    drift: float | None = None
    """At τ = 1."""


class Trained(Record):
    """The fine-tuning that produced a checkpoint."""

    data: str | None = None
    epoch: int | None = None
    """From 1."""
    top1: float | None = None
    top5: float | None = None
    images: int | None = None
    """Validation images."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_interval(self) -> tuple[float, float] | None:
        """95 % score interval of the accuracy."""
        if self.top1 is None or not self.images:
            return None
        return scores.rounded_interval(round(self.top1 * self.images), self.images)


class ModelInfo(Record):
    """Description of a model; null where unknown or not applicable."""

    name: str
    kind: str
    """`T-CNN`, `CNN`, or `timm model`."""
    file: str | None = None
    bytes: int | None = None
    source: str | None = None
    """The CNN, as timm calls it."""
    weights: str | None = None
    """What they were before the conversion: `pretrained`, `random` or `file`; of a timm model its tags."""
    stage: str | None = None
    layers: int | None = None
    stride: str | None = None
    position: str | None = None
    """How heads attend by position."""
    parameters_before: int | None = None
    parameters: int | None = None
    flops: int | None = None
    temperature: tuple[float, float] | None = None
    """The smallest and the largest τ of the layers, as they are."""
    input_size: tuple[int, ...] | None = None
    classes: int | None = None
    label_names: tuple[str, ...] | None = None
    license: str | None = None
    verification: Verified | None = None
    fold: str | None = None
    """`exact` or `approximate` where heads were folded into convolutions, `pruned` where some were removed."""
    training: Trained | None = None
    """Its accuracy is that from before it was folded."""
    source_training: Trained | None = None
    """What the fine-tuning was of the CNN that was converted, if it was one of ours."""
    tcnn_version: str | None = None


def of_file(name: str, file: Path) -> ModelInfo:
    """What a safetensors file of ours is, or timm's own directory around it; raises `RequestError` for any other."""
    told = metadata(file)
    size = {"file": str(file), "bytes": file.stat().st_size}
    if not told.get("conversion"):
        if (plain := _of_timms(name, file, size)) is not None:
            return plain
        raise RequestError(not_a_model(file, told))
    beside = {"verification": told.get("verification") or _beside(file)}
    return of_metadata(name, told | beside, **size, temperature=_temperatures(file))


SECTIONS = ("conversion", "pretrained_cfg", "training")
"""Parts of a checkpoint's metadata from which a model is described."""


def of_metadata(name: str, told: Mapping[str, Any], **more: Any) -> ModelInfo:
    """What the metadata of a checkpoint say, its JSON decoded; `more` goes over it.

    Raises `RequestError` if a part of them that is read is damaged.
    """
    report, cfg, training = (told.get(section) or {} for section in SECTIONS)
    for section, content in zip(SECTIONS, (report, cfg, training), strict=True):
        if not isinstance(content, dict):
            raise RequestError(
                f"{name}: expected a JSON object as `{section}` in its header, found {shorten(repr(content), 60)}; the "
                "file is damaged, take another copy"
            )
    args: dict[str, Any] = report.get("model_args") or {}  # what it was built with goes over what timm's model is
    source = told.get("source")
    earlier = source.get("training") if isinstance(source, dict) else None
    labels = told.get("label_names") or cfg.get("label_names") or training.get("class_names")
    weights = training.get("weights") or _plain(told.get("weights"))
    found = ModelInfo(
        name=name, kind=_kind(report),
        source=report.get("base_model"), weights=weights,
        stage=report.get("stage"), layers=len(report.get("layers") or ()),
        stride=(report.get("config") or {}).get("stride"), position=_position(report),
        parameters_before=report.get("parameters_before"), parameters=report.get("parameters_after"),
        input_size=_input_size(cfg.get("input_size"), args), classes=args.get("num_classes", cfg.get("num_classes")),
        label_names=tuple(labels) if labels else None,
        license=licence_of(cfg, weights, (earlier or {}).get("weights")),
        verification=_verified(told.get("verification")), fold=_fold(told.get("fold")), training=_trained(training),
        source_training=_trained(earlier or {}),
        tcnn_version=str(told.get("tcnn_version")),
    )  # fmt: skip
    return found.model_copy(update=more)


def _input_size(usual: Sequence[int] | None, args: Mapping[str, Any]) -> tuple[int, ...] | None:
    """(channels, height, width) of a model of this usual size that was built with these arguments."""
    if not usual:
        return None
    channels, *size = usual
    given = args.get("img_size") or size
    return args.get("in_chans") or channels, *((given, given) if isinstance(given, int) else given)


def of_config(name: str, config: Mapping[str, Any], **more: Any) -> ModelInfo:
    """What timm's config.json says, with the catalogue where the model was built as there; `more` goes over it."""
    labels = config.get("label_names")
    known = of_name(str(config["architecture"]))
    shape = tuple((config.get("pretrained_cfg") or {}).get("input_size") or known.input_size or ())
    told: dict[str, Any] = {
        "name": name, "weights": "file", "classes": config.get("num_classes"),
        "label_names": tuple(labels) if labels else None,
    }  # fmt: skip
    if config.get("model_args") or shape != known.input_size:
        told |= {"input_size": shape or None, "flops": None}
    if config.get("model_args"):
        told |= {"parameters": None, "parameters_before": None}
    return known.model_copy(update=told | more)


def of_name(name: str) -> ModelInfo:
    """What the catalogue says of a timm name; raises `UnknownModelError`."""
    word = architecture(name)
    entry = catalogue.check(word, default_choice=False)
    if entry is None and ":" not in name:
        raise RequestError(no_model(name))
    if entry is None:
        raise RequestError(f"{name}: a repository, which is read by loading it; tcnn inspect and tcnn evaluate do")
    converted = is_converted(name.removeprefix("timm/")) and entry.convertible
    return ModelInfo(
        name=name, kind="T-CNN" if converted else "timm model", source=entry.name,
        weights=", ".join(entry.weights) or "none",
        stage=entry.stage, layers=entry.layers, parameters_before=entry.parameters,
        parameters=entry.converted_parameters if converted else entry.parameters,
        flops=entry.converted_flops if converted else entry.flops, input_size=entry.input_size,
    )  # fmt: skip


def _position(report: Mapping[str, Any]) -> str | None:
    """Files from before there was a choice do not say."""
    return (report.get("config") or {}).get("position", "isotropic") if report.get("layers") else None


def _kind(report: Mapping[str, Any]) -> str:
    """A transformer that was trained as it is has no convolution to convert, and is no CNN."""
    if report.get("layers"):
        return "T-CNN"
    entry = catalogue.entries().get(str(report.get("base_model")).partition(".")[0])
    return "CNN" if entry is None or entry.convertible else "timm model"


def _plain(value: Any) -> str | None:
    return None if value is None else str(value).strip('"')


def _verified(report: Any) -> Verified | None:
    if not isinstance(report, dict):
        return None
    errors = {one["dtype"]: max(one["logits"]["relative"], one["logits"]["max_relative"]) for one in report["passes"]}
    passed = all(one["passed"] for one in report["passes"])
    return Verified(passed=passed, errors=errors, drift=(report.get("drift") or {}).get("logits", {}).get("relative"))


def _fold(report: Any) -> str | None:
    if not isinstance(report, dict):
        return None
    return "pruned" if report.get("pruned") else "approximate" if report.get("tolerance") else "exact"


def _trained(training: dict[str, Any]) -> Trained | None:
    if not training:
        return None
    found: dict[str, Any] = training.get("metrics") or {}
    val: dict[str, Any] = found.get("val") or {}
    epoch = found.get("epoch")
    return Trained(
        data=training.get("data"), epoch=None if epoch is None else epoch + 1, top1=val.get("top1"),
        top5=val.get("top5"), images=val.get("images"),
    )  # fmt: skip


def _of_timms(name: str, file: Path, size: dict[str, Any]) -> ModelInfo | None:
    """What timm's own directory holds, `config.json` beside weights, if the file lies in one."""
    try:
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
        named = isinstance(config["architecture"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not named or not Path(name.removeprefix("local-dir:")).is_dir():
        return None
    counted = _parameters(file)
    return of_config(name, config, **size, parameters=counted, parameters_before=counted)


def _parameters(file: Path) -> int:
    """Numbers in a file of a model's state that are not the statistics of its normalisation."""
    with safe_open(file, framework="numpy") as handle:
        names = [key for key in handle.keys() if key.rpartition(".")[2] not in STATISTICS]  # noqa: SIM118
        return sum(math.prod(handle.get_slice(name).get_shape()) for name in names)


def _beside(file: Path) -> Any:
    """The verification of the conversion that a run began with, which lies beside its checkpoints."""
    converted = file.with_name("converted.safetensors")
    return metadata(converted).get("verification") if converted.is_file() and converted != file else None


def _temperatures(file: Path) -> tuple[float, float] | None:
    """The smallest and the largest τ among the layers' buffers; None without any, or of a type that NumPy lacks."""
    try:
        with safe_open(file, framework="numpy") as handle:
            names = [key for key in handle.keys() if key.rpartition(".")[2] in TEMPERATURES]  # noqa: SIM118
            values = [float(handle.get_tensor(key)) for key in names]
    except (SafetensorError, OSError, TypeError, ValueError):
        return None
    return (min(values), max(values)) if values else None
