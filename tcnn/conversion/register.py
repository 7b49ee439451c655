"""`timm.create_model("t_resnet50d")`: every convertible timm model, registered under its name with a `t_` before it.

The entry points take what the source model takes, and the fields of `ConversionConfig` beside it:
``timm.create_model("t_resnet50d", num_classes=10, stride="remove")``. With ``pretrained=True`` the source's weights are
loaded and converted; from `local-dir:` and `hf-hub:` the T-CNN's own weights are. So timm's train, validate and hub
tools work on converted models. ``anneal_steps=1000`` has the model raise its own τ in training, whatever the loop.

`timm.list_models()` names what it names without tcnn; ``timm.list_models("t_*")`` names the converted models.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import timm
import wrapt
from timm.models import DefaultCfg, load_pretrained, register_model
from torch import nn

from tcnn.config import ConversionConfig, build
from tcnn.errors import NothingToConvertError, RequestError, UnsupportedLayerError, WeightsError, shorten
from tcnn.networks import attentive
from tcnn.state import parts
from tcnn.wording import asked_in_python
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import registered_name

default_cfgs: dict[str, DefaultCfg] = {}
"""Where timm's `register_model` looks for the weights and input sizes of this module's models."""

__all__: list[str] = []
"""The models, as `register_model` keeps it."""

MODULES = (__name__.rpartition(".")[2], attentive.__name__.rpartition(".")[2])
"""What timm knows the modules of tcnn's models by."""


GO_ON = "give pretrained_cfg_overlay={'file': FILE} with the CNN's weights, or pretrained=False for random ones"
"""What to do without a network, in the words of `timm.create_model`."""


def register_all() -> None:
    """Register every convertible model of the catalogue; a second call changes nothing."""
    for entry in catalogue.entries().values():
        name = registered_name(entry.name)
        if entry.convertible and timm.is_model(entry.name) and not timm.is_model(name):
            cfgs = timm.models.get_arch_pretrained_cfgs(entry.name)
            tags = {key.partition(".")[2]: cfg for key, cfg in cfgs.items()}
            if tags:
                default_cfgs[name] = DefaultCfg(tags=type(DefaultCfg().tags)(tags), cfgs=tags, is_pretrained=True)
            register_model(_entry_point(entry.name))


def _entry_point(base: str) -> Callable[..., nn.Module]:
    """A function such as timm's `resnet50d`, for `t_resnet50d`."""

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create(base, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = registered_name(base)
    create.__module__ = __name__
    create.__doc__ = f"The T-CNN of timm's {base}; takes its arguments and those of ConversionConfig."
    setattr(sys.modules[__name__], create.__name__, create)
    return create


@asked_in_python
def _create(
    base: str,
    pretrained: bool,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: str | None = None,
    pretrained_model_args: dict[str, Any] | None = None,
    anneal_steps: int | None = None,
    anneal_end: float | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Build timm's model and convert it; `kwargs` are its arguments and the fields of `ConversionConfig`."""
    # timm may just be being imported by the very modules that convert, so they are needed no sooner than here.
    from tcnn.conversion.annealing import anneal
    from tcnn.conversion.surgery import convert

    options = {key: kwargs.pop(key) for key in ConversionConfig.model_fields if key in kwargs}
    config = build(ConversionConfig, options)
    # A tag names weights of the source; a whole configuration (local-dir:, hf-hub:) describes a T-CNN's own.
    own = None
    if isinstance(pretrained_cfg, dict):
        own = {**pretrained_cfg, **(pretrained_cfg_overlay or {}), "architecture": registered_name(base)}
    with _downloading(base) if pretrained and own is None else nullcontext():
        source = timm.create_model(
            base,
            pretrained=pretrained and own is None,
            pretrained_cfg=None if own is not None else pretrained_cfg,
            pretrained_cfg_overlay=pretrained_cfg_overlay,
            cache_dir=cache_dir,
            **kwargs,
        )
    features = bool(kwargs.get("features_only"))
    model = _convert_features(base, source, config, kwargs) if features else convert(source, config).model
    if own is not None:
        model.pretrained_cfg = model.default_cfg = own  # type: ignore[assignment]
        if pretrained:
            load_pretrained(
                model,
                pretrained_cfg=own,
                num_classes=getattr(model, "num_classes", 0),
                in_chans=kwargs.get("in_chans", 3),
                filter_fn=_for_extractor if features else _of_its_versions,
                cache_dir=cache_dir,
            )
    if anneal_steps is not None:
        anneal(model, anneal_steps, 1.0 if anneal_end is None else anneal_end)
    elif anneal_end is not None:
        raise RequestError("anneal_end: has no effect without anneal_steps; give both")
    return model


@contextmanager
def _downloading(base: str) -> Iterator[None]:
    """Context in which timm loads the source's weights: without a network it ends within seconds, in one line."""
    from tcnn.hugging_face import hub_errors, offline_if_unreachable, quiet_hub  # which may be what imports timm

    with hub_errors(registered_name(base), GO_ON), offline_if_unreachable(), quiet_hub():
        yield


def _convert_features(base: str, source: nn.Module, config: ConversionConfig, kwargs: dict[str, Any]) -> nn.Module:
    """Convert a feature extractor exactly where the whole classifier would be converted.

    timm's wrappers may cut stages off and write names of their own, so the choice is made on the classifier (on the
    meta device) and found again in the wrapper.
    """
    from tcnn.conversion.stages import match_names
    from tcnn.conversion.surgery import convert
    from tcnn.models.trace import meta_copy

    rest = {k: v for k, v in kwargs.items() if k not in ("features_only", "out_indices", "feature_cls")}
    chosen = [layer.name for layer in convert(meta_copy(timm.create_model(base, **rest)), config).report.layers]
    there = match_names(chosen, (name for name, _ in source.named_modules()))
    if not there:
        raise NothingToConvertError(
            f"{registered_name(base)}: these features end before the layers that would be converted "
            f"({shorten(', '.join(chosen))}); choose out_indices that reach them, or create {base} for the CNN"
        )
    model, report = convert(source, config.model_copy(update={"target": "|".join(map(re.escape, there))}))
    missing = there.keys() - {layer.name for layer in report.layers}
    if missing:
        reasons = "; ".join(f"{layer.name}: {layer.reason}" for layer in report.skipped)
        raise UnsupportedLayerError(f"{registered_name(base)}: not every layer can be converted in features: {reasons}")
    return model


def _of_its_versions(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """A state dict as of the model's own versions of modules: timm reads a file's tensors alone."""
    return parts(state).to_load(model.state_dict())


def _for_extractor(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Rename a classifier's state dict for its feature extractor, and leave out what the extractor does not have."""
    from tcnn.conversion.stages import match_names

    expected = model.state_dict()
    found = {name: state[own] for name, own in match_names(state, expected).items()}
    if missing := [name for name in expected if name not in found]:
        raise WeightsError(f"{missing[0]}: in the feature extractor, not in the weights of its T-CNN")
    return _of_its_versions(found, model)


def _on_request(
    listing: Callable[..., list[str]], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Hide the converted models from timm's listings, unless a filter begins with `t_` or names this module."""
    asked = inspect.signature(listing).bind(*args, **kwargs)
    wanted: list[str] = []
    for key in asked.arguments.keys() & {"filter", "module"}:
        if not isinstance(asked.arguments[key], str):
            asked.arguments[key] = list(asked.arguments[key])  # it may be an iterator
        wanted += [asked.arguments[key]] if isinstance(asked.arguments[key], str) else asked.arguments[key]
    names = listing(*asked.args, **asked.kwargs)
    if any(pattern.startswith(("t_", "cordonnier")) or pattern in MODULES for pattern in wanted):
        return names
    ours = {*__all__, *attentive.default_cfgs}
    return [name for name in names if name.partition(".")[0] not in ours]


register_all()
for _place in (timm, timm.models):
    for _name in ("list_models", "list_pretrained"):
        wrapt.wrap_function_wrapper(_place, _name, _on_request)
