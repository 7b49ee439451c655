"""What a file, a run or a model's name is, in one record: read from heads of files and the catalogue, without torch."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tcnn.analysis.reading.rundirs import metadata
from tcnn.checkpoints.places import checkpoint_file
from tcnn.errors import RequestError
from tcnn.records import Record
from tcnn.zoo import catalogue
from tcnn.zoo.names import architecture, is_converted, is_weights_file

TEMPERATURES = ("gate_temperature", "position_temperature", "temperature")
"""Names of the layers' τ in files; the last until version 0.2."""


class Verified(Record):
    """What the verification at conversion found."""

    passed: bool
    errors: dict[str, float]
    """Relative error of the logits by dtype."""
    drift: float | None = None
    """At τ = 1."""


class Trained(Record):
    """What the fine-tuning was that made a checkpoint."""

    data: str | None = None
    epoch: int | None = None
    """From 1."""
    top1: float | None = None
    top5: float | None = None
    images: int | None = None
    """Validation images."""


class ModelInfo(Record):
    """What a name stands for; None where that is not known or does not apply."""

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
    training: Trained | None = None
    tcnn_version: str | None = None


def info(name: str) -> ModelInfo:
    """What a checkpoint, a run's directory, a hub-layout directory or a timm name is.

    Raises: `RequestError` for a file that is none of ours, `UnknownModelError` for a name that nothing has.
    """
    path = Path(name.removeprefix("local-dir:"))
    file = None if is_weights_file(path) else checkpoint_file(path)
    if file is not None:
        return _of_file(name, file)
    if is_weights_file(path):
        raise RequestError(
            f"{name}: of torch.save, which can be told only by loading it; tcnn convert makes a checkpoint of it"
        )
    if path.suffix == ".safetensors" or path.is_dir():
        raise RequestError(
            f"{name}: expected a checkpoint or a run, found {'none in it' if path.is_dir() else 'nothing'}"
        )
    return _of_name(name)


def _of_name(name: str) -> ModelInfo:
    word = architecture(name)
    entry = catalogue.check(word, default_choice=False)
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


def _of_file(name: str, file: Path) -> ModelInfo:
    told = metadata(file)
    report: dict[str, Any] = told.get("conversion") or {}
    if not report:
        if (plain := _of_timms(name, file)) is not None:
            return plain
        raise RequestError(
            f"{file}: a safetensors file, but not written by tcnn; tcnn convert MODEL OUT --weights {file}"
        )
    cfg, training = told.get("pretrained_cfg") or {}, told.get("training") or {}
    labels = told.get("label_names") or cfg.get("label_names")
    return ModelInfo(
        name=name, kind="T-CNN" if report.get("layers") else "CNN", file=str(file), bytes=file.stat().st_size,
        source=report.get("base_model"), weights=training.get("weights") or _plain(told.get("weights")),
        stage=report.get("stage"), layers=len(report.get("layers") or ()),
        stride=(report.get("config") or {}).get("stride"), parameters_before=report.get("parameters_before"),
        parameters=report.get("parameters_after"), temperature=_temperatures(file),
        input_size=tuple(cfg.get("input_size") or ()) or None, classes=cfg.get("num_classes"),
        label_names=tuple(labels) if labels else None, license=cfg.get("license"),
        verification=_verified(told.get("verification")), training=_trained(training),
        tcnn_version=str(told.get("tcnn_version")),
    )  # fmt: skip


def _of_timms(name: str, file: Path) -> ModelInfo | None:
    """What timm's own directory holds, `config.json` beside weights, if the file lies in one."""
    try:
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
        word = config["architecture"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not Path(name.removeprefix("local-dir:")).is_dir() or not isinstance(word, str):
        return None
    labels = config.get("label_names")
    return _of_name(word).model_copy(
        update={
            "name": name, "file": str(file), "bytes": file.stat().st_size, "weights": "file",
            "classes": config.get("num_classes"), "label_names": tuple(labels) if labels else None,
        }
    )  # fmt: skip


def _plain(value: Any) -> str | None:
    return None if value is None else str(value).strip('"')


def _verified(report: Any) -> Verified | None:
    if not isinstance(report, dict):
        return None
    errors = {one["dtype"]: max(one["logits"]["relative"], one["logits"]["max_relative"]) for one in report["passes"]}
    passed = all(one["passed"] for one in report["passes"])
    return Verified(passed=passed, errors=errors, drift=(report.get("drift") or {}).get("logits", {}).get("relative"))


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


def _temperatures(file: Path) -> tuple[float, float] | None:
    """The smallest and the largest τ among the layers' buffers; None without any, or of a type that NumPy lacks."""
    try:
        with safe_open(file, framework="numpy") as handle:
            names = [key for key in handle.keys() if key.rpartition(".")[2] in TEMPERATURES]  # noqa: SIM118
            values = [float(handle.get_tensor(key)) for key in names]
    except (SafetensorError, OSError, TypeError, ValueError):
        return None
    return (min(values), max(values)) if values else None
