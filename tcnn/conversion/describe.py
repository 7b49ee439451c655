"""Write the catalogue of timm's models: build each on the meta device, convert it there, record what happened.

python -m tcnn.conversion.describe [NAME…]
"""

import json
import sys
import warnings
from pathlib import Path

import timm
import torch
from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.selection import refused, stages_of
from tcnn.conversion.stages import is_spatial
from tcnn.conversion.surgery import convert
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.models.trace import flops, input_shape, parameter_count, trace
from tcnn.zoo.catalogue import PATH, Entry, folded
from tcnn.zoo.sources import without_data


def describe(name: str) -> Entry:
    """The catalogue's entry of one timm model, without memory for its weights."""
    with without_data():
        model = timm.create_model(name).eval()
    shape = input_shape(model)
    facts: dict[str, object] = {
        "name": name,
        "family": type(model).__module__.rpartition(".")[2],
        "input_size": shape,
        "parameters": parameter_count(model),
        "flops": flops(model, shape),
        "weights": tuple(
            key.partition(".")[2] for key, cfg in timm.models.get_arch_pretrained_cfgs(name).items() if cfg.has_weights
        ),
        **choices(model),
    }
    try:
        converted, report = convert(model)
    except NothingToConvertError as error:
        return Entry(**facts, convertible=False, reason=str(error))  # type: ignore[arg-type]
    kernels = dict.fromkeys("×".join(map(str, layer.kernel_size)) for layer in report.layers)
    return Entry(
        **facts,  # type: ignore[arg-type]
        convertible=True,
        stage=report.stage,
        layers=len(report.layers),
        kernels=tuple(kernels),
        converted_parameters=report.parameters_after,
        converted_flops=flops(converted, shape),
        stride_removable=_stride_removable(model),
    )


def choices(model: nn.Module) -> dict[str, object]:
    """The stages of a model, the convolutions that a target may name, and the most channels that one of these reads."""
    steps = trace(model)
    spatial = {step.name: step.module for step in steps if is_spatial(step.module) and not refused(step)}
    return {
        "stages": tuple(stages_of(model, steps)),
        "convolutions": folded([name for name, _ in model.named_modules() if name in spatial]),
        "widest": max((module.in_channels for module in spatial.values() if isinstance(module, nn.Conv2d)), default=0),
    }


def _stride_removable(model: nn.Module) -> bool:
    """Whether ``stride="remove"`` is possible."""
    try:
        convert(model, ConversionConfig(stride="remove"))
    except RequestError:
        return False
    return True


def write(path: Path = PATH, names: list[str] | None = None) -> None:
    """Describe every model and write the catalogue, one line each, so that a diff can be read."""
    rows = []
    names = names or timm.list_models()
    for number, name in enumerate(names, 1):
        rows.append(json.dumps(describe(name).model_dump(exclude_defaults=True), ensure_ascii=False))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number}/{len(names)} {name:<60}")
    body = ",\n".join(rows)
    path.write_text(f'{{"timm": "{timm.__version__}", "models": [\n{body}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    write(names=sys.argv[1:] or None)
