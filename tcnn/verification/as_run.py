"""Verify the backends: compare the model as it is run with its attention.

`verify` compares the attention with the source. Users run something faster: a convolution in the hard limit, all maps
at once or in chunks otherwise, at the model's own temperatures.
"""

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig
from tcnn.layers.backends.selection import backend, use_backend
from tcnn.models.outputs import errors, top1_agreement
from tcnn.models.randomise import layer_noise
from tcnn.models.running import in_dtype, logits_of, replacements, watch_layers
from tcnn.models.trace import evaluating
from tcnn.verification.report import AsRun, LayerError


def compare_as_run(converted: nn.Module, batch: Tensor, config: VerificationConfig) -> AsRun:
    """Compare the model as it is run with its attention, in float32: every layer alone, and the logits end to end."""
    dtype = torch.float32
    model = in_dtype(converted, dtype)
    layers: dict[str, LayerError] = {}

    def try_layer(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        noise = layer_noise(x, name, dtype, config.seed)
        found = layer.forward(noise)
        with use_backend("fused"):
            expected, attended = layer.forward(noise), layer.forward(x)
        layers.setdefault(name, LayerError(name=name, random=errors(expected, found), activation=errors(attended, y)))

    with evaluating(model):
        with watch_layers(model, replacements(model), try_layer):
            found = logits_of(model, batch, dtype)
        with use_backend("fused"):
            expected = logits_of(model, batch, dtype)
    logits = errors(expected, found)
    worst = max([logits.worst, *(layer.worst for layer in layers.values())])
    return AsRun(
        backend=backend(),
        dtype="float32",
        tolerance=config.tolerance_float32,
        logits=logits,
        top1_agreement=top1_agreement(expected, found),
        layers=tuple(layers.values()),
        passed=worst <= config.tolerance_float32,
    )
