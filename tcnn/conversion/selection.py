"""Select the convolutions to convert, by stage or by name, with the reason why others are skipped.

Of a stage (`tcnn.conversion.stages`) they are its spatial convolutions at its resolution; of the last, those that work
at the backbone's final resolution.
"""

import re
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from tcnn.config import ConversionConfig
from tcnn.conversion.stages import Stage, find_stages, is_spatial, map_area, pick, reads_image
from tcnn.conversion.ties import inseparable
from tcnn.errors import NothingToConvertError
from tcnn.formatting import some
from tcnn.layers.filters import refusal
from tcnn.models.trace import Step, input_shape


@dataclass(frozen=True)
class Selection:
    """The convolutions chosen, by dotted name in running order, and what was passed over with the reason."""

    names: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    stage: str
    span: range = field(default=range(0))
    """The steps of the trace that make up the stage, for stride removal."""


def select(model: nn.Module, steps: list[Step], config: ConversionConfig) -> Selection:
    """Choose by `config.target`, a regular expression, or by `config.stage`, an index.

    Args:
        steps: the trace of the model, which decides where stages begin and end.

    Raises: `NothingToConvertError` when no convolution is left, `RequestError` for a stage that there is not.
    """
    stages = find_stages(model, steps)
    stage = pick(stages, config.stage)
    span = range(stage.start, stage.stop) if stage else range(0)
    if config.target is not None:
        return _separable(model, _by_target(model, steps, config.target, span))
    if stage is None:
        raise NothingToConvertError(f"{_title(model)} runs no convolution: nothing to convert")
    chosen, skipped = _stage_convolutions(model, steps, stage, last=stage is stages[-1])
    if not chosen:
        raise NothingToConvertError(_nothing_in(model, steps, stages, stage, skipped))
    return _separable(model, Selection(chosen, skipped, stage.label, span))


def stages_of(model: nn.Module, steps: list[Step]) -> list[tuple[str, int]]:
    """The label of every stage, by index, and how many convolutions of it can be chosen."""
    stages = find_stages(model, steps)
    return [(one.label, len(_stage_convolutions(model, steps, one, last=one is stages[-1])[0])) for one in stages]


def refused(step: Step) -> str | None:
    """The reason why a layer cannot be converted, or None: the layer itself, or what the model does to it."""
    written = "a forward pass sets its weight (weight.data = …), which a replacement would lose: set it once, before"
    return refusal(step.module) or (written if step.rewritten else None)


def _separable(model: nn.Module, selection: Selection) -> Selection:
    """The selection without convolutions whose filter is shared with a layer that stays."""
    reasons = inseparable(model, selection.names)
    names = tuple(name for name in selection.names if name not in reasons)
    if not names:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise NothingToConvertError(f"{_title(model)}: no convolution of {selection.stage} can be converted: {said}")
    return replace(selection, names=names, skipped=(*selection.skipped, *reasons.items()))


def _is_convolution(module: nn.Module) -> bool:
    """Whether the layer is a convolution of any kind, or is named like one and has a kernel.

    ConvNeXt's normalisations, `ConvNextLayerNorm` and `ConvNextV2GRN`, are named after the network.
    """
    if isinstance(module, nn.modules.conv._ConvNd):
        return True
    if "Conv" not in type(module).__name__ or not hasattr(module, "weight"):
        return False
    weight = module.weight
    return hasattr(module, "kernel_size") or (isinstance(weight, Tensor) and weight.dim() >= 4 and len(weight) > 1)


def _stage_convolutions(
    model: nn.Module, steps: list[Step], stage: Stage, last: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The k×k convolutions of a stage that work at its resolution, by name, and those skipped with their reasons.

    Args:
        last: whether the stage is the last, to which what runs after it at the same resolution belongs as well.
    """
    channels = input_shape(model)[0]
    skipped: dict[str, str] = {}
    found: list[tuple[int, Step]] = []
    # GhostNet's and FastViT's last convolutions run after the last entry of feature_info, at the same resolution.
    for i, step in enumerate(steps[stage.start :] if last else steps[stage.start : stage.stop], stage.start):
        if is_spatial(step.module) and map_area(step.output_shape):
            if step.name and reads_image(step, steps, channels):
                skipped[step.name] = "it reads the image itself, as a stem or patch embedding"
            else:
                found.append((i, step))
        elif _is_convolution(step.module) and not isinstance(step.module, nn.Conv2d):
            skipped[step.name] = refusal(step.module) or ""
    inside = [(i, s) for i, s in found if i < stage.stop]
    if not inside:
        return (), tuple(skipped.items())
    height, width = min((_hw(s) for _, s in inside), key=lambda hw: hw[0] * hw[1])
    final = height * width
    pool = _first_pool(steps, stage, final)
    chosen: dict[str, None] = {}
    for i, step in found:
        h, w = _hw(step)
        at_final = h * w <= 2 * final and (i < stage.stop or 2 * h * w >= final)
        # An anti-aliased ResNet convolves at the old resolution and pools afterwards: still this stage's first layer.
        before_pool = stage.start > 0 and i < pool and h <= 2 * height + 1 and w <= 2 * width + 1
        if at_final or before_pool:
            reason = refused(step)
            if reason:
                skipped[step.name] = reason
            else:
                chosen[step.name] = None
        elif i < stage.stop:
            skipped[step.name] = f"it works at {h}×{w}, not at the stage's {height}×{width}"
    # A layer that runs at several resolutions, such as a detector's shared head, is chosen if any is the stage's.
    return tuple(chosen), tuple((name, reason) for name, reason in skipped.items() if name not in chosen)


def _first_pool(steps: list[Step], stage: Stage, final: int) -> int:
    """The step that brings the stage to its final resolution, if it is a pool; −1 if a strided convolution does it."""
    for i in range(stage.start, stage.stop):
        before, after = map_area(steps[i].input_shape), map_area(steps[i].output_shape)
        if final <= 2 * after <= before:
            return -1 if isinstance(steps[i].module, nn.Conv2d) else i
    return -1


def _by_target(model: nn.Module, steps: list[Step], target: str, span: range) -> Selection:
    """The k×k convolutions whose whole dotted name matches the regular expression."""
    ran = {step.name: step for step in steps}
    names, skipped, candidates = [], [], []
    for name, module in model.named_modules():
        if not _is_convolution(module):
            continue
        candidates.append(name)
        if not re.fullmatch(target, name):
            continue
        if isinstance(module, nn.Conv2d) and not is_spatial(module):
            skipped.append((name, "1×1: it looks at one pixel only, there is nothing to attend to"))
        elif reason := refusal(module):
            skipped.append((name, reason))
        elif name not in ran:
            skipped.append((name, "it does not run in a forward pass"))
        elif reason := refused(ran[name]):
            skipped.append((name, reason))
        else:
            names.append(name)
    if names:
        return Selection(tuple(names), tuple(skipped), f"target {target}", span)
    if skipped:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped[:8])
        raise NothingToConvertError(f"target {target!r} matches only layers that cannot be converted: {reasons}")
    examples = ", ".join(name for name in candidates if is_spatial(model.get_submodule(name))) or "none"
    raise NothingToConvertError(
        f"target {target!r} matches no convolution (the whole dotted name must match); convolutions here: "
        f"{_shorten(examples)}"
    )


def _nothing_in(
    model: nn.Module, steps: list[Step], stages: list[Stage], stage: Stage, skipped: tuple[tuple[str, str], ...]
) -> str:
    """The message for a stage without a k×k convolution: what was looked at, and which stages have some."""
    looked = f"looked at {some(len(steps[stage.start : stage.stop]), 'layer')} of stage {stage.label}"
    passed = "; ".join(f"{name}: {reason}" for name, reason in skipped[:4])
    message = f"{_title(model)}: no k×k convolution to convert ({looked}{'; ' + passed if passed else ''})"
    others = []
    for index, other in enumerate(stages):
        if other is not stage:
            names, _ = _stage_convolutions(model, steps, other, last=False)
            if names:
                others.append(f"--stage {index} ({len(names)} in {other.label})")
    if others:
        return f"{message}; other stages: {', '.join(others)}"
    everywhere = ", ".join(dict.fromkeys(step.name for step in steps if is_spatial(step.module)))
    return f"{message}; " + (f"the only k×k convolutions are {_shorten(everywhere)}" if everywhere else "it has none")


def _hw(step: Step) -> tuple[int, int]:
    assert step.output_shape is not None  # noqa: S101 - callers keep only steps with a map
    return step.output_shape[-2], step.output_shape[-1]


def _title(model: nn.Module) -> str:
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return cfg.get("architecture") or type(model).__name__


def _shorten(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(",", 1)[0] + ", …"
