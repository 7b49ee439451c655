"""The layers of a conversion's report as they are in its model now: some may have been removed or replaced since."""

from collections.abc import Iterable, Sequence

from torch import nn

from tcnn.checkpoints.edits import GEOMETRY, Edits, describe
from tcnn.conversion.report import ConversionReport, LayerReport
from tcnn.conversion.ties import still_tied
from tcnn.errors import RequestError
from tcnn.layers.base import AttentionLayer
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.trace import parameter_count


def still_there(model: nn.Module, report: ConversionReport) -> ConversionReport:
    """The report without what the model no longer has, as after timm's `prune_intermediate_layers`.

    It stays as it is where some layer attends under another name than a report's: something was wrapped around that.
    """
    modules = dict(model.named_modules())
    attending = {name for name, module in modules.items() if isinstance(module, AttentionLayer)}
    reported = {layer.name for layer in report.layers}
    if reported <= attending or not attending <= reported:
        return report
    layers = tuple(layer for layer in report.layers if layer.name in attending)
    after = parameter_count(model)
    update = {
        "layers": layers,
        "strides_removed": tuple(name for name in report.strides_removed if name in modules),
        "dilated": {name: factors for name, factors in report.dilated.items() if name in modules},
        "parameters_before": after - sum(layer.parameters_after - layer.parameters_before for layer in layers),
        "parameters_after": after,
    }
    return report.model_copy(update=update)


def refuse_none_left(model: nn.Module, report: ConversionReport) -> None:
    """Raise `RequestError` for a model in which nothing attends any more, though its report has layers."""
    if report.layers and not still_there(model, report).layers:
        raise RequestError(
            f"{type(model).__name__}: expected one of its {len(report.layers)} GPSA layers, found none left; it is a "
            "CNN: save its state_dict() by PyTorch, or convert it again (tcnn.convert)"
        )


def moved(model: nn.Module, now: Iterable[LayerReport], past: Iterable[LayerReport]) -> Edits:
    """The layers of another geometry than that of their conversion, as which no convolution can be converted anew."""
    found = {
        own.name: {key for key in GEOMETRY if getattr(own, key) != getattr(layer, key)}
        for own, layer in zip(now, past, strict=True)
    }
    told = {name: describe(model.get_submodule(name)) for name in found}
    return {name: {key: told[name][key] for key in keys} for name, keys in found.items() if keys}


def as_converted(now: Iterable[LayerReport], report: ConversionReport) -> tuple[LayerReport, ...]:
    """Layers as they are, in the geometry of their conversion, as which alone a convolution can be converted anew."""
    return tuple(
        one.model_copy(update={key: getattr(layer, key) for key in GEOMETRY})
        for one, layer in zip(now, report.layers, strict=True)
    )


def as_they_are(model: nn.Module, layers: Sequence[LayerReport]) -> tuple[LayerReport, ...]:
    """The entries of layers as they are now, which somebody may have replaced since.

    Raises `RequestError` where the model has none: a wrapper may pass on the report of the model that is in it.
    """
    modules, now = dict(model.named_modules()), []
    for layer in layers:
        found = modules.get(layer.name)
        if not isinstance(found, AttentionLayer):
            told = "nothing" if found is None else type(found).__name__
            raise RequestError(
                f"{type(model).__name__}: expected a GPSA layer {layer.name}, as its report says, found {told}; of a "
                "wrapper save the model inside (after merge_and_unload, where the wrapper adds weights)"
            )
        own: dict[str, object] = {key: getattr(found.geometry, key) for key in GEOMETRY}
        own |= {"content": str(found.scope), "position": found.position, "position_reach": found.position_reach}
        own |= {"head_dim": found.head_dim, "tied": still_tied(model, layer)}
        if isinstance(found, GPSA2d):
            own |= {"heads": found.heads, "content_heads": found.content_heads}
        now.append(layer.model_copy(update=own))
    return tuple(now)
