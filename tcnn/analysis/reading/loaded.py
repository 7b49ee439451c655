"""What a file of timm's train.py holds: its head says nothing, so the model is loaded."""

from pathlib import Path

from tcnn.analysis.reading.model_info import ModelInfo, Trained, of_metadata, of_name
from tcnn.analysis.reading.rundirs import decoded
from tcnn.checkpoints.checkpoint import contents
from tcnn.checkpoints.opening import open_model
from tcnn.conversion.report import ConversionReport
from tcnn.models.size import parameter_count
from tcnn.training.recipe.optim import gpsa_layers
from tcnn.zoo import weights as weights_files


def of_weights(name: str, path: Path) -> ModelInfo:
    """What a file that names its model has; raises what opening it raises, with what to name it for."""
    model = open_model(str(path))
    content = weights_files.read(path)
    own = {
        "file": str(path), "bytes": path.stat().st_size, "weights": "file", "parameters": parameter_count(model),
        "classes": getattr(model, "num_classes", None), "training": _trained(content),
        "input_size": tuple((getattr(model, "pretrained_cfg", None) or {}).get("input_size") or ()) or None,
    }  # fmt: skip
    if not isinstance(getattr(model, "conversion_report", None), ConversionReport):
        found = of_name(str(content.architecture))
        return found.model_copy(update={**own, "name": name, "parameters_before": None, "flops": None})
    heats = [
        float(tau)
        for layer in gpsa_layers(model).values()
        for tau in (layer.gate_temperature, layer.position_temperature)
    ]
    told = decoded(contents(model)[1])
    return of_metadata(name, told, **own, temperature=(min(heats), max(heats)), tcnn_version=None)


def _trained(content: weights_files.WeightsFile) -> Trained | None:
    """What timm's train.py has noted; its metric is top-1 in percent unless it was told another."""
    options = content.arguments
    if content.epoch is None:
        return None
    percent = content.metric if options.get("eval_metric", "top1") == "top1" else None
    data = options.get("data_dir") or options.get("data")
    top1 = None if percent is None else percent / 100
    return Trained(data=None if data is None else str(data), epoch=content.epoch + 1, top1=top1)
