"""Random draws of several processes: each draws for the images of all, and takes its own.

With equally seeded generators the draws are those of one process that has all images. What one process draws once for
all images, such as a number that decides whether a layer is skipped, is drawn alike in all processes.

A layer draws by many functions, some of them only in C++. `WholeDraws` intercepts what all of them come to: the few
operations of PyTorch that fill a tensor from a generator. It costs time for every operation, so it is active only in
the functions that `draws` names.

Shapes: B images of one process, W processes, … the other axes. A tensor has a part for every image if B divides its
length, as of a map folded into windows or heads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tcnn.training.distributed import Processes

READS = {"rrelu_with_noise", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}
"""Operations that draw as many numbers as the values of their input say."""
FILLS = READS | {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "native_dropout", "_fused_dropout",
    "normal", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "uniform",
}  # fmt: skip
"""Operations that fill a tensor from a generator, image by image; one that works in place has an underscore behind."""
COMPOSED = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
    "rrelu", "gumbel_softmax", "multi_head_attention_forward", "scaled_dot_product_attention",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
}  # fmt: skip
"""Functions that use these operations within."""
DROPOUT_AT = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
"""The place of `dropout_p` among the arguments of attention, which draws for nothing else."""


def draws(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function of PyTorch called like this may draw a part for every image."""
    name = getattr(func, "__name__", "").removesuffix("_")
    if name not in COMPOSED and name not in FILLS:
        return False
    if name in COMPOSED and (kwargs.get("training") is False or kwargs.get("p") == 0):
        return False
    at = DROPOUT_AT.get(name)
    if at is not None and not (kwargs.get("dropout_p") or any(args[at : at + 1])):
        return False
    return not (args and isinstance(args[0], nn.Parameter))  # weights are the same for all images


class WholeDraws(TorchDispatchMode):
    """Context in which B images of this process get what is drawn for them among W·B; rank r has r·B … r·B + B − 1."""

    def __init__(self, processes: Processes, images: int) -> None:
        super().__init__()
        self._rank, self._world, self._images = processes.rank, processes.world, images

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__.removesuffix("_")
        given = [*args, *kwargs.values()]
        if name not in FILLS or not any(self._of_images(value) for value in given):
            return func(*args, **kwargs)
        wide = [self._whole(value, gather=name in READS) if self._of_images(value) else value for value in given]
        found = func(*wide[: len(args)], **dict(zip(kwargs, wide[len(args) :], strict=True)))
        written = {id(w): own for w, own in zip(wide, given, strict=True) if isinstance(w, Tensor) and w is not own}
        for argument, whole in zip(func._schema.arguments, wide[: len(args)], strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and id(whole) in written:
                written[id(whole)].copy_(self._own(whole))
        if isinstance(found, Tensor):
            return written[id(found)] if id(found) in written else self._own(found).clone()
        return tuple(self._own(part).clone() for part in found)

    def _of_images(self, value: Any) -> bool:
        """Whether a tensor, or the size of one, has a part for every image."""
        if isinstance(value, Tensor):
            value = value.shape
        return isinstance(value, (list, torch.Size)) and bool(value) and value[0] > 0 and value[0] % self._images == 0

    def _whole(self, value: Any, gather: bool) -> Any:
        """A tensor, or size, for the images of all processes; with `gather` it has their values, too."""
        if not isinstance(value, Tensor):
            return [self._world * value[0], *value[1:]]
        parts = [value] * self._world
        if gather:
            parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in parts]
            dist.all_gather(parts, value.contiguous())
        return torch.cat(parts)  # which keeps the memory format, the order in which values are drawn

    def _own(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._world)[self._rank]
