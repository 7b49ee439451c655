"""Is what users run the attention that was verified? The fastest way to compute a layer beside its formula.

`verify` compares the attention with the source. Users run something else: a convolution while the layer still is one,
all maps at once or in parts after that, whichever is the fastest, at the temperatures at which the model stands.
"""

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig
from tcnn.layers.backends.selection import backend, use_backend
from tcnn.models.differences import agreement, errors
from tcnn.models.randomise import generator
from tcnn.models.running import in_dtype, logits_of, replacements, watching
from tcnn.models.trace import evaluating
from tcnn.verification.report import AsRun, LayerError


def compare_as_run(converted: nn.Module, batch: Tensor, config: VerificationConfig) -> AsRun:
    """The model as it is run, in float32, beside its attention: every layer on its own, and the logits end to end."""
    dtype = torch.float32
    model = in_dtype(converted, dtype)
    layers: dict[str, LayerError] = {}

    def try_layer(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        noise = torch.randn(x.shape, dtype=dtype, generator=generator(config.seed, name)).to(x.device)
        found = layer.forward(noise)
        with use_backend("fused"):
            expected, attended = layer.forward(noise), layer.forward(x)
        layers.setdefault(name, LayerError(name=name, random=errors(expected, found), activation=errors(attended, y)))

    with evaluating(model):
        with watching(model, replacements(model), try_layer):
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
        top1_agreement=agreement(expected, found),
        layers=tuple(layers.values()),
        passed=worst <= config.tolerance_float32,
    )
