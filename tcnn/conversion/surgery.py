"""`convert` a CNN into a T-CNN, by a plan that is made once and applied once, and `rebuild` one from its report."""

import dataclasses
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from tcnn.config import ConversionConfig, build
from tcnn.conversion.carry import copy_with
from tcnn.conversion.plan import Plan, Replacement, base_model_of, plan_conversion
from tcnn.conversion.report import ConversionReport, FoldRecord
from tcnn.conversion.stages import keep_reductions_right
from tcnn.conversion.strides.layers import strideless_layers
from tcnn.conversion.ties import tie
from tcnn.conversion.timm_tools import keep_changed_blocks, sign
from tcnn.errors import NothingToConvertError, RequestError, UnsupportedLayerError
from tcnn.formatting import some
from tcnn.layers.filters import geometry_of
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.positions import Geometry
from tcnn.models.checks import named, refuse_prepared, refuse_sharded, unwrapped
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import check_size, trace


class Conversion(NamedTuple):
    """The converted model and the report of what was done; unpacks as `model, report`."""

    model: nn.Module
    report: ConversionReport


@torch.inference_mode(False)  # a model that is made within it can be neither trained nor changed later
def convert(model: nn.Module, config: ConversionConfig | None = None, **options: object) -> Conversion:
    """Replace the k×k convolutions of a CNN's last stage with GPSA layers that compute the same function.

    Args:
        model: any `nn.Module`; it is left as it was, and shares no memory with the result. Of one that `torch.compile`,
            `DataParallel` or `DistributedDataParallel` wrapped, the module in it is converted: wrap the result.
        config: what to convert and how. Fields given as keywords go over it: ``convert(model, stride="remove")``.

    Returns: `Conversion(model, report)`. At the default temperature the result equals the source (or, with
    ``stride="remove"`` or ``"dilate"``, `without_stride(source, stride=…)`); prove it with `tcnn.verify`.

    Raises: `NothingToConvertError`, `UnsupportedLayerError`, `RequestError`.

    Source: d'Ascoli et al. 2021, §2, Eq. 5 and 6 (W_val = I, W_out = filter, one head per tap, padding preserved).
    """
    config = build(ConversionConfig, options, config)
    if not isinstance(model, nn.Module):
        raise RequestError(
            f"model: expected a module, found {named(model)}; build it first, for example by "
            'timm.create_model("resnet50d", pretrained=True), and load a state dict into it'
        )
    model = unwrapped(model)
    refuse_prepared(model, "convert")
    refuse_sharded(model, "convert")
    if gpsa_layers(model):
        before = any("conversion_report" in vars(module) for module in model.modules())
        told = "it was converted before" if before else "give a CNN"
        raise NothingToConvertError(f"{type(model).__name__} has GPSA layers already: {told}")
    plan = plan_conversion(model, config)
    converted = apply(model, plan)
    check_size(converted, config.input_size)  # it may ask its convolutions for what attention has not
    report = plan.report(model, converted)
    return Conversion(sign(converted, report), report)


@torch.inference_mode(False)
def without_stride(model: nn.Module, config: ConversionConfig | None = None, **options: object) -> nn.Module:
    """The same CNN with the stride of its last stage removed: the reference for a conversion that removes it.

    `config` and keywords are those of the conversion, with ``stride="remove"`` (the default here) or ``"dilate"``;
    raises what `convert` raises.
    """
    if isinstance(options.get("stride"), str) and options["stride"] == "keep":
        raise RequestError("stride: without_stride removes it, got 'keep'; leave the keyword out, or give 'dilate'")
    way = "dilate" if getattr(config, "stride", None) == "dilate" else "remove"
    config = build(ConversionConfig, {"stride": way, **options}, config)
    model = unwrapped(model)
    return apply(model, replace(plan_conversion(model, config), replacements=()))


def strideless(model: nn.Module, config: ConversionConfig) -> nn.Module:
    """The CNN that a conversion is the equal of, with a report, so that it is saved and loaded like a converted one."""
    plan = replace(plan_conversion(model, config), replacements=())
    made = apply(model, plan)
    made.conversion_report = plan.report(model, made)  # type: ignore[assignment]
    return made


def rebuild(model: nn.Module, report: ConversionReport) -> nn.Module:
    """Convert (a fresh copy of) the source architecture as its report says: what loading a checkpoint does.

    Raises: `UnsupportedLayerError` for an architecture that the report does not fit.
    """
    return sign(apply(model, Plan.of_report(report)), report)


def unconverted(model: nn.Module) -> nn.Module:
    """Attach an empty report to a CNN, in place, so that it can be saved and loaded like a converted model."""
    plan = Plan(base_model_of(model), ConversionConfig())
    model.conversion_report = plan.report(model, model)  # type: ignore[assignment]
    return model


def apply(model: nn.Module, plan: Plan) -> nn.Module:
    """Apply a plan: a copy of the model with every layer replaced that the plan names, and the ties that it names.

    New weights are drawn in the order of the plan, with the seed of its configuration.

    Raises: `UnsupportedLayerError` for a layer that cannot be replaced, or where the model has no convolution.
    """
    layers = strideless_layers(model, plan.stride)
    generator = torch.Generator().manual_seed(plan.config.seed)
    modules = dict(model.named_modules())
    for replacement in plan.replacements:
        name = replacement.name
        conv = layers.get(name) or modules.get(name)
        if not isinstance(conv, nn.Conv2d):
            raise UnsupportedLayerError(f"{name}: expected a convolution in {plan.base_model}, found none")
        _refuse_other_geometry(name, geometry_of(conv), replacement.geometry)
        if replacement.fold is None:
            layers[name] = _attention(conv, replacement, plan.config, generator)
        else:
            layers[name] = _folded(conv, replacement, replacement.fold)
    made = copy_with(model, layers)
    keep_changed_blocks(made, layers)
    if plan.stride.removed and any(hasattr(module, "feature_info") for module in made.modules()):
        with suppress(RequestError):  # a file's model may run at other sizes only, and then keeps its own
            keep_reductions_right(made, *(trace(one, plan.config.input_size) for one in (model, made)))
    tie(made, {replacement.name: replacement.tied for replacement in plan.replacements})
    return made


def _refuse_other_geometry(name: str, found: Geometry, expected: Geometry) -> None:
    """Weights of one shape fit convolutions of any stride, dilation and padding; a report knows which it was."""
    for field in dataclasses.fields(Geometry):
        own, wanted = getattr(found, field.name), getattr(expected, field.name)
        if own != wanted:
            raise UnsupportedLayerError(f"{name}: expected {field.name} {wanted}, as it was converted, found {own}")


def _attention(
    conv: nn.Conv2d, replacement: Replacement, config: ConversionConfig, generator: torch.Generator
) -> GPSA2d:
    """The GPSA layer that computes the same function as the convolution."""
    return GPSA2d.from_conv2d(
        conv, replacement.head_dim, config.temperature, generator, replacement.content, replacement.content_heads,
        config.query_key, replacement.position, replacement.position_reach,
    )  # fmt: skip


def _folded(conv: nn.Conv2d, replacement: Replacement, fold: FoldRecord) -> FoldedGPSA2d:
    """The layer that `tcnn.fold` left in the place of a convolution, with parameters that a file must fill."""
    geometry = geometry_of(conv)
    expected = geometry.heads + replacement.content_heads
    if len(fold.heads) != expected:
        raise UnsupportedLayerError(f"{replacement.name}: expected {some(expected, 'head')}, found {len(fold.heads)}")
    return FoldedGPSA2d(
        conv.in_channels, conv.out_channels, geometry, conv.groups, conv.bias is not None, replacement.head_dim,
        fold.heads, fold.value, conv.weight.device, conv.weight.dtype, replacement.content, replacement.position,
        replacement.position_reach,
    )  # fmt: skip
