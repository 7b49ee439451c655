"""`timm.create_model("t_resnet50d")`: every convertible timm model, registered under its name with a `t_` before it.

The entry points take what the source model takes, and the fields of `ConversionConfig` beside it:
``timm.create_model("t_resnet50d", num_classes=10, stride="remove")``. With ``pretrained=True`` the source's weights are
loaded and converted; from `local-dir:` and `hf-hub:` the T-CNN's own weights are. So timm's train, validate and hub
tools work on converted models.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import timm
from timm.models import DefaultCfg, load_pretrained, register_model
from torch import nn

from tcnn.config import ConversionConfig, build
from tcnn.conversion import catalogue
from tcnn.conversion.catalogue import registered_name

default_cfgs: dict[str, DefaultCfg] = {}
"""Where timm's `register_model` looks for the weights and input sizes of this module's models."""

__all__: list[str] = []


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
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create(base, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = registered_name(base)
    create.__module__ = __name__
    create.__doc__ = f"The T-CNN of timm's {base}; takes its arguments and those of ConversionConfig."
    setattr(sys.modules[__name__], create.__name__, create)
    return create


def _create(
    base: str,
    pretrained: bool,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: str | None = None,
    pretrained_model_args: dict[str, Any] | None = None,
    **kwargs: Any,
) -> nn.Module:
    # timm may just be being imported by the very modules that convert, so they are needed no sooner than here.
    from tcnn.conversion.surgery import convert

    options = {key: kwargs.pop(key) for key in ConversionConfig.model_fields if key in kwargs}
    config = build(ConversionConfig, options)
    # A tag names weights of the source; a whole configuration (local-dir:, hf-hub:) describes a T-CNN's own.
    own = {**pretrained_cfg, "architecture": registered_name(base)} if isinstance(pretrained_cfg, dict) else None
    source = timm.create_model(
        base,
        pretrained=pretrained and own is None,
        pretrained_cfg=None if own is not None else pretrained_cfg,
        pretrained_cfg_overlay=pretrained_cfg_overlay,
        cache_dir=cache_dir,
        **kwargs,
    )
    model = (
        _convert_features(base, source, config, kwargs)
        if kwargs.get("features_only")
        else convert(source, config).model
    )
    if own is not None:
        model.pretrained_cfg = model.default_cfg = own  # type: ignore[assignment]
        if pretrained:
            load_pretrained(
                model,
                pretrained_cfg=own,
                num_classes=getattr(model, "num_classes", 0),
                in_chans=kwargs.get("in_chans", 3),
                strict="features_only" not in kwargs,
                cache_dir=cache_dir,
            )
    return model


def _convert_features(base: str, source: nn.Module, config: ConversionConfig, kwargs: dict[str, Any]) -> nn.Module:
    """Convert a feature extractor exactly where the whole classifier would be converted.

    timm's wrapper may cut stages off and rewrites dots in names, so the choice is made on the classifier (on the meta
    device) and found again in the wrapper.
    """
    from tcnn.conversion.surgery import convert
    from tcnn.conversion.trace import meta_copy

    rest = {k: v for k, v in kwargs.items() if k not in ("features_only", "out_indices", "feature_cls")}
    report = convert(meta_copy(timm.create_model(base, **rest)), config).report
    names = {name.replace(".", "_"): name for name, _ in source.named_modules()}
    kept = [names[key] for layer in report.layers if (key := layer.name.replace(".", "_")) in names]
    if not kept:
        return source
    target = "|".join(map(re.escape, kept))
    return convert(source, config.model_copy(update={"target": target})).model


register_all()
