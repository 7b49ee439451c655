"""Layer-wise distillation ("matching"): while τ rises, every GPSA layer is trained to match its source convolution.

Zhang et al. 2024 (LoLCATs, arXiv 2410.10254, §3.2) have linear attention learn the output of the softmax attention that
it replaces, layer by layer, by mean squared error; here attention learns that of a convolution on the same input.

Shapes: B batch, C channels, H×W map, K heads, G groups.
"""

from typing import Any

import torch
from timm.task import TrainingTask
from torch import Tensor, nn

from tcnn.errors import CheckpointError
from tcnn.layers.backends import convolution
from tcnn.layers.gpsa import GPSA2d

PARTS = ("value", "filter", "bias")
"""Tensors of a frozen convolution: W_val, the filter (C_out, C_in/G, kh, kw) and the bias."""


class Matching:
    """Adds the mean of `mismatch` over all layers, times a weight, to the loss of a task, until it is closed.

    Args:
        task: whose forward pass runs the layers.
        layers: by name; their current filters are the targets.

    The gradient also reaches the modules before a layer, as that of the loss does. The targets are not part of the
    model: `state` is saved in resume points, because the layers of a resumed run have other filters by then.
    """

    def __init__(self, task: TrainingTask, layers: dict[str, GPSA2d], weight: float) -> None:
        self.weight = weight
        self._sources = {
            name: {part: tensor.detach().clone() for part in PARTS if (tensor := getattr(layer, part)) is not None}
            for name, layer in layers.items()
        }
        self._found: list[Tensor] = []
        self._hooks: list[Any] = [task.register_forward_pre_hook(self._begin), task.register_forward_hook(self._add)]
        for name, layer in layers.items():
            self._hooks.append(layer.register_forward_hook(self._hook(self._sources[name])))

    @property
    def state(self) -> dict[str, Tensor]:
        """The frozen convolutions, by `layer.part`."""
        return {f"{name}.{part}": tensor for name, parts in self._sources.items() for part, tensor in parts.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Load `state`; raises `CheckpointError` if it belongs to other layers."""
        own = self.state
        if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in state.items()}:
            raise CheckpointError("the resume point does not hold the convolutions that the layers are matched with")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def close(self) -> None:
        """Remove all hooks: stop matching."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _begin(self, task: nn.Module, arguments: Any) -> None:
        self._found.clear()

    def _add(self, task: nn.Module, arguments: Any, result: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**result, "loss": result["loss"] + self.weight * torch.stack(self._found).mean()}

    def _hook(self, source: dict[str, Tensor]) -> Any:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def compare(layer: GPSA2d, arguments: tuple[Tensor], y: Tensor) -> None:
            if not (self._hooks and layer.training):
                return
            with torch.no_grad():
                wanted = convolution.convolve(
                    arguments[0], layer.geometry, source.get("value"), source["filter"], source.get("bias"),
                    layer.groups,
                )  # fmt: skip
            self._found.append(mismatch(y, wanted))

        return compare


def mismatch(y: Tensor, wanted: Tensor) -> Tensor:
    """Relative mean squared error of maps (B, C, H, W): divided by the variance of `wanted` per image, then averaged.

    Per image, so that it does not matter how a batch is divided. At least float32; the variance of a constant map
    counts as 1e-6.
    """
    y, wanted = y.flatten(1).float(), wanted.flatten(1).float()
    return ((y - wanted).square().mean(1) / wanted.var(1, correction=0).clamp_min(1e-6)).mean()
