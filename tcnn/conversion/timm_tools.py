"""What timm's tools ask of a converted model: its name in the registry, `no_weight_decay()`, `reparameterize_model`.

timm spares vectors and biases from weight decay by their dimensions, and what a model names besides. The centres of
positional attention are a matrix: unnamed, the first step would shift every filter.

`timm.models.reparameterize_model` asks every block for `fuse()`, `reparameterize()` or `switch_to_deploy()`, which
add up the filters of parallel convolutions (RepVGG, MobileOne, FastViT, RepViT, GhostNet, …). Attention has no filter
to add: blocks that hold some stay as they are, all others merge. Where a stride was replaced by dilation, the blocks
of LCNetV2 and FastViT would make convolutions with the stride and without the dilation, with which they were built:
they stay as they are, too.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from tcnn.conversion.report import ConversionReport
from tcnn.errors import out_of_memory
from tcnn.layers.base import AttentionLayer
from tcnn.layers.terms import kinds
from tcnn.models.copying import copied
from tcnn.models.trace import meta_copy
from tcnn.zoo.catalogue import registered_name

SPARED = ("gating_param", *kinds.PARAMETERS, "value")
"""λ, the parameters of positions (α, Δ, …) and W_val: a decayed gate is a decision, a decayed centre is a shifted
filter, and a W_val that shrinks from the identity towards 0 takes the filters with it, which decay themselves."""
METHODS = ("fuse", "reparameterize", "switch_to_deploy")
Parts = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of blocks within a block, and of what is in each."""


def sign(model: nn.Module, report: ConversionReport) -> nn.Module:
    """Attach to the model its report, its weight decay exemptions and its name in timm's registry (`t_resnet50d`)."""
    model.conversion_report = report  # type: ignore[assignment]
    if not report.layers:
        return model
    exempt_positions(model)
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg and cfg.get("architecture"):
        architecture = registered_name(cfg["architecture"])
        model.pretrained_cfg = model.default_cfg = {**cfg, "architecture": architecture}  # type: ignore[assignment]
        options = report.config.model_dump(exclude_defaults=True)
        model._model_args = {**getattr(model, "_model_args", {}), **options}  # type: ignore[assignment]
    return model


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


def keep_changed_blocks(model: nn.Module, changed: Iterable[str]) -> None:
    """Exempt blocks from timm's `reparameterize_model`, in place, where merging them would change what they compute.

    A model's own method, which goes through its blocks, is left alone.

    Args:
        changed: names of layers that have become attention, or have lost their stride or been dilated.
    """
    within = {name.rsplit(".", parts)[0] for name in changed for parts in range(name.count(".") + 1)}
    for name, block in model.named_modules():
        if name in within:
            keep_whole(block, mergeable_parts(block))


def keep_whole(block: nn.Module, parts: Parts) -> None:
    """Exempt a block from merging while something in it attends, or where its `mergeable_parts` are others by then.

    Nor does it merge where its method would make convolutions of another stride or dilation.
    """
    for method in METHODS:
        if hasattr(type(block), method):
            setattr(block, method, partial(_merged, block, method, parts))


def mergeable_parts(block: nn.Module) -> Parts:
    """The blocks within a block that timm can merge, and what is in each: to merge one is to change one or the other.

    A block that stands apart while they merge, as one that attends, cannot merge them again: its method would fail.
    """
    return tuple(
        (name, tuple(child for child, _ in part.named_children()))
        for name, part in block.named_modules()
        if name and any(hasattr(type(part), method) for method in METHODS)
    )


def _merged(block: nn.Module, method: str, parts: Parts | None = None) -> nn.Module | None:
    """The block itself, or what its own method gives if a fold has made its attention convolutions again.

    Args:
        parts: those it was built with; None in what version 0.2 pickled.
    """
    stays = attends(block) or (parts is not None and mergeable_parts(block) != parts)
    return block if stays or not _merges_alike(block, method) else _made(block, method)


def _merges_alike(block: nn.Module, method: str) -> bool:
    """Whether a block's method makes convolutions of the strides and dilations that it has: some take others.

    It is tried on a copy without data, on one with data if it reads them; what fails on both stays as it is.
    """
    ways: tuple[tuple[Callable[[nn.Module], nn.Module], AbstractContextManager[object]], ...] = (
        (meta_copy, torch.device("meta")), (copied, nullcontext()),
    )  # fmt: skip
    for copy, place in ways:
        try:
            with place:
                return _as_before(block, _made(copy(block), method))
        except Exception as error:
            if out_of_memory(error):
                raise
    return False


def _made(block: nn.Module, method: str) -> nn.Module:
    """What a block's own method gives, with the blocks in it that it merges, which are not asked one by one."""
    with _unguarded(block):
        return getattr(type(block), method)(block) or block


@contextmanager
def _unguarded(block: nn.Module) -> Iterator[None]:
    """Context in which what is in a block merges by its own methods, as the block expects."""
    guards = [
        (part, method, vars(part).pop(method)) for part in block.modules() for method in METHODS if method in vars(part)
    ]
    try:
        yield
    finally:
        for part, method, guard in guards:
            setattr(part, method, guard)


def _as_before(block: nn.Module, made: nn.Module) -> bool:
    """Whether the convolutions of a merged block have the strides and dilations of those that it was made of.

    A pixel has no dilation; nor has the filter into which a batch norm is made, whose other taps are 0.
    """
    before, after = _convolutions(block), _convolutions(made)
    strides = {conv.stride for conv in before} | {(1, 1)}
    spread, found = ({conv.dilation for conv in one if max(conv.kernel_size) > 1} for one in (before, after))
    return all(conv.stride in strides for conv in after) and (not spread or found == spread)


def _convolutions(block: nn.Module) -> list[nn.Conv2d]:
    return [module for module in block.modules() if isinstance(module, nn.Conv2d)]


def attends(block: nn.Module) -> bool:
    """Whether there is an attention layer in a block."""
    return any(isinstance(module, AttentionLayer) for module in block.modules())
