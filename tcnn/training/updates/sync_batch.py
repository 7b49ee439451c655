"""Synchronised statistics and random draws: several processes compute what one would.

Batch normalisation takes mean and variance over a batch; dropout and stochastic depth draw a number per image, channel
or value from a generator. `SyncBatch` is active around a forward and backward pass and gives both the images of all
processes, for layers of any class and library: it intercepts the functions that they call. PyTorch's `SyncBatchNorm`
needs a GPU and its class in the model.

Shapes: B images of one process, W processes, C channels, … the other axes of a map.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tcnn.training.distributed import Processes
from tcnn.training.updates.sync_draws import WholeDraws, draws


def sync_batch(processes: Processes, images: int) -> AbstractContextManager[object]:
    """The context of a pass over so many images of this process: `SyncBatch`, or none if there is only one process."""
    return SyncBatch(processes, images) if processes.world > 1 else nullcontext()


class SyncBatch(TorchFunctionMode):
    """Context in which training uses one batch of W·B images, of which this process has rank·B … rank·B + B − 1.

    All processes must run the same layers on equally many images, with equally seeded generators.
    """

    def __init__(self, processes: Processes, images: int) -> None:
        super().__init__()
        self._processes, self._images = processes, images

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs.get("training"):
            return batch_norm(*args, **kwargs)
        if func is F.instance_norm and kwargs.get("use_input_stats"):
            return instance_norm(*args, **kwargs)
        if draws(func, args, kwargs):
            return self._draw(func, args, kwargs)
        return func(*args, **kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it cannot follow what is intercepted
    def _draw(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with WholeDraws(self._processes, self._images):
            return func(*args, **kwargs)


def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """`F.instance_norm` in training, whose running statistics average over the images of all processes.

    They are linear in those of the images, so the mean of the processes' own is that of all.
    """
    y = F.instance_norm(x, running_mean, running_var, *args, **kwargs)
    for running in (running_mean, running_var):
        if running is not None:
            dist.all_reduce(running)
            running.div_(dist.get_world_size())
    return y


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Synchronised `F.batch_norm` in training, (B, C, …), with the statistics of the W·B images of all processes.

    Every process computes the same running statistics.
    """
    values = x if x.dtype == torch.float64 else x.float()
    mean, variance, count = _statistics(values.detach())
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * (count / max(1, count - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    weight = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
    bias = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
    y: Tensor = _Normalise.apply(values, mean, variance, weight, bias, eps)
    return y.to(x.dtype)


class _Normalise(torch.autograd.Function):
    """Normalisation y = w·x̂ + b with x̂ = (x − μ)/σ, where μ and σ depend on the images of every process.

    With g the gradient of y and ⟨·⟩ the mean over all images and positions of a channel, the gradient of x is
    w·(g − ⟨g⟩ − x̂·⟨g·x̂⟩)/σ (Ioffe & Szegedy 2015, §3): two sums per channel are exchanged. Passes over maps are
    those of PyTorch's own kernels, for sums of products as for anything linear in x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, mean, (variance + eps).rsqrt(), weight)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inverse, weight = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            g, x, None, None, None, mean, inverse, True, 0.0, [False, True, True]
        )
        sums = torch.stack([of_bias, of_weight])
        dist.all_reduce(sums)
        first, second = (sums * (x.shape[1] / (x.numel() * dist.get_world_size()))).unbind()
        # In one pass what is linear in x, in another the rest: (w/σ)·(g − ⟨g⟩) − (w·⟨g·x̂⟩/σ²)·(x − μ).
        scale = weight * inverse
        slope = -scale * second * inverse
        linear = F.batch_norm(x, mean, torch.ones_like(mean), slope, -scale * first, training=False, eps=0.0)
        return linear.addcmul_(g, scale.view(1, -1, *(1,) * (x.dim() - 2))), None, None, of_weight, of_bias, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean and biased variance of every channel over all processes, (C,) each, and the number of values.

    Variances are combined from the variance within the processes and the one between them (Chan et al. 1979): the
    difference of two large sums would lose what float32 cannot hold.
    """
    own = torch.stack(torch.batch_norm_update_stats(x, None, None, 0.0))
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    means, variances = torch.stack(parts).unbind(1)
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, variances.mean(0) + between, len(parts) * (x.numel() // x.shape[1])
