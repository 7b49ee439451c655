"""Parameters of a converted model that are exempt from weight decay: `model.no_weight_decay()`, as timm's models have.

timm spares vectors and biases from weight decay by their dimensions, and what a model names besides. The centres of
positional attention are a matrix: unnamed, the first step would shift every filter.
"""

from dataclasses import dataclass

from torch import nn

from tcnn.layers.base import AttentionLayer
from tcnn.layers.terms import kinds

SPARED = ("gating_param", *kinds.PARAMETERS, "value")
"""λ, the parameters of positions (α, Δ, …) and W_val: a decayed gate is a decision, a decayed centre is a shifted
filter, and a W_val that shrinks from the identity towards 0 takes the filters with it, which decay themselves."""


@dataclass(frozen=True)
class NoWeightDecay:
    """A `no_weight_decay()` that knows its answer: plain data, so that it is copied and pickled with its model."""

    names: frozenset[str]

    def __call__(self) -> set[str]:
        """Names of parameters, and patterns (as timm reads them) under which a wrapper's prefix hides no layer."""
        return set(self.names)


def exempt_positions(model: nn.Module) -> None:
    """Add λ, positions and W_val of every layer that attends to what the model itself spares from weight decay."""
    own = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()  # type: ignore[operator]
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, AttentionLayer)]
    spared = [
        (name, own) for name, layer in layers for own in SPARED if own not in kinds.PARAMETERS or hasattr(layer, own)
    ]
    exact = (f"{layer}.{parameter}".lstrip(".") for layer, parameter in spared)
    wrapped = (f"*.{parameter}" for _, parameter in spared)
    model.no_weight_decay = NoWeightDecay(frozenset((*own, *exact, *wrapped)))  # type: ignore[assignment]
