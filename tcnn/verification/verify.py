"""Verify that a converted model computes the same function as its source, independently of the conversion code.

It compares outputs: layer by layer, on random inputs and on the activations that reach the layer, and end to end on
logits; in float32 and float64. It always runs the attention and never calls a convolution in its place. Users run
something faster: a convolution in the hard limit, all maps at once or in chunks otherwise, at the model's own
temperatures. That is compared with the attention, and not with the source (`compare_as_run`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.arguments import typed
from tcnn.config import HARD_TEMPERATURE, VerificationConfig, build
from tcnn.errors import RequestError
from tcnn.layers.backends.selection import backend, use_backend
from tcnn.models.checks import (
    refuse_inference_tensors,
    refuse_other_images,
    refuse_prepared,
    refuse_without_values,
    unwrapped,
)
from tcnn.models.difference import errors, output_errors, top1_agreement
from tcnn.models.outputs import Outputs, is_empty, other_shape, other_shapes
from tcnn.models.precision import exact_arithmetic
from tcnn.models.randomise import layer_noise, noise_images, randomised
from tcnn.models.running import (
    NotInFloat64,
    at_temperature,
    in_dtype,
    logits_of,
    replacements,
    temperatures,
    told_in_one_line,
    watch_layers,
    weights_dtype,
)
from tcnn.models.trace import evaluating, input_shape
from tcnn.verification.judging import (
    allow_for_rounding,
    never_ran,
    not_finite,
    told_shapes,
    tolerance_of,
    unsteady,
    with_stride,
)
from tcnn.verification.report import EMPTY, AsRun, Drift, DtypePass, LayerError, VerificationReport


@typed()
def verify(
    source: nn.Module,
    converted: nn.Module,
    config: VerificationConfig | None = None,
    images: Tensor | None = None,
    randomise: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: object,
) -> VerificationReport:
    """Compare a converted model with its source, layer by layer and end to end.

    Args:
        source: the CNN (for a conversion with ``stride="remove"`` or ``"dilate"``: `without_stride(cnn, stride=…)`).
        converted: its conversion; layers are matched by dotted name.
        config: tolerances and sizes; settings given as keywords override it: ``verify(a, b, tolerance_float32=1e-6)``.
        images: (B, C, H, W), normalised as the model expects; standard normal noise when None.
        randomise: give every normalisation layer random statistics, scales and shifts during the comparison. Use it
            with random weights: fresh networks scale many residual branches by exactly zero, which hides any error.
        progress: called with the name of every step before it begins.

    Equivalence is a property of the hard limit, so it is measured at τ = 1/46 even when the model stands at another
    temperature; the error there is in `drift` (τ = 1) and `written`. It is measured with the attention. What is run in
    its place, a convolution in the hard limit or another backend, is compared with the attention at the model's own
    temperatures, in `as_run`.

    Returns: a `VerificationReport`; nothing is raised for a failure, see `passed` and `failure()`. Neither model is
    changed. Relative errors are in L2 and against the largest value; the larger of the two must be within tolerance.

    Raises: `RequestError` for a source that does not fit, a model without values (on the meta device), images that
    are not finite, a model that does not run in float64 (unless ``float64=False``), or a layer whose temperature is
    not a number above 0.
    """
    config = build(VerificationConfig, options, config)
    source, converted = unwrapped(source), unwrapped(converted)
    refuse_prepared(converted, "verify")
    for model in (source, converted):
        refuse_without_values(model, "verify")
    refuse_inference_tensors(converted, "verify")
    _check_source(source, converted)
    if images is not None:
        refuse_other_images(images)
    # The size that the conversion remembers; its source may have been built for another.
    size = config.input_size or input_shape(converted)[1:]
    batch = noise_images(source, config.model_copy(update={"input_size": size})) if images is None else images
    dtypes = [torch.float32, torch.float64] if config.float64 else [torch.float32]
    own = temperatures(converted)
    hard = min(max(own.values()), HARD_TEMPERATURE)
    told = progress if progress is not None else lambda step: None
    with exact_arithmetic(), torch.no_grad(), randomised(source, converted, batch, config.seed, enabled=randomise):
        # The attention in bounded memory: left alone, a layer in the hard limit would run the convolution it replaced.
        with use_backend("fused"), at_temperature(converted, hard):
            passes, expected = [], []
            for dtype in dtypes:
                told(str(dtype).removeprefix("torch."))
                result, logits = _compare(source, converted, batch, dtype, config)
                passes.append(result if result.passed else with_stride(result, source, converted))
                expected.append(logits)
        told("what is run")
        as_run = compare_as_run(converted, batch, config)
        if config.float64:
            rounding = output_errors(expected[1], expected[0]).worst
            allowed = passes[0] = allow_for_rounding(passes[0], passes[1], rounding)
            if allowed.passed:
                as_run = allow_for_rounding(as_run, passes[1], rounding)
        told("drift")
        with use_backend("fused"):
            with at_temperature(converted, 1.0):
                drift = _drift(expected[0], converted, batch)
            somewhere_else = max(own.values()) > HARD_TEMPERATURE * 1.01 and set(own.values()) != {1.0}
            written = _drift(expected[0], converted, batch) if somewhere_else else None
    return VerificationReport(
        passed=all(result.passed for result in (*passes, as_run)),
        temperature=hard,
        images=f"{'noise' if images is None else 'images'} {'×'.join(map(str, batch.shape))}",
        seed=config.seed,
        statistics_randomised=randomise,
        passes=tuple(passes),
        as_run=as_run,
        temperatures=own,
        drift=drift,
        written=written,
    )


def verify_where_it_runs(
    source: nn.Module, converted: nn.Module, config: VerificationConfig, images: Tensor | None = None, **options: Any
) -> VerificationReport:
    """`verify`, in float32 only where a model does not run in float64; a note of the report then says so."""
    try:
        return verify(source, converted, config, images, **options)
    except NotInFloat64 as error:
        report = verify(source, converted, config.model_copy(update={"float64": False}), images, **options)
        single, *_ = report.passes
        reason = f"not compared in float64: {str(error).rpartition(';')[0]}"
        note = reason if single.note is None else f"{single.note}; {reason}"
        return report.model_copy(update={"passes": (single.model_copy(update={"note": note}),)})


def _compare(
    source: nn.Module, converted: nn.Module, batch: Tensor, dtype: torch.dtype, config: VerificationConfig
) -> tuple[DtypePass, Outputs]:
    """Compare in one dtype; returns the errors and the source's logits.

    The source runs once, and every replacement is run on the input of its convolution. The converted model has to call
    every one itself.
    """
    replaced = replacements(converted)
    layers: dict[str, LayerError] = {}
    shapes: list[str] = []

    def try_layer(name: str, conv: nn.Module, x: Tensor, y: Tensor) -> None:
        layer = in_dtype(replaced[name], dtype)
        noise = layer_noise(x, name, dtype, config.seed)
        random, found = errors(conv.forward(noise), layer(noise)), layer(x)
        layers.setdefault(name, LayerError(name=name, random=random, activation=errors(y, found)))
        shapes.extend(told_shapes(f"what {name} makes of the same input", other_shape(y, found)))

    ran: set[str] = set()
    reference = in_dtype(source, dtype)
    with evaluating(reference), told_in_one_line(reference, batch, dtype), watch_layers(reference, replaced, try_layer):
        expected = logits_of(reference, batch, dtype)
    del reference
    candidate = in_dtype(converted, dtype)
    watched = watch_layers(candidate, replaced, lambda name, *_: ran.add(name))
    with evaluating(candidate), told_in_one_line(candidate, batch, dtype), watched:
        found = logits_of(candidate, batch, dtype)
    tolerance, note = tolerance_of(dtype, source, converted, expected, config)
    logits = output_errors(expected, found)
    found_errors = [logits.worst, *(layer.worst for layer in layers.values())]
    shapes[:0] = told_shapes("the outputs", other_shapes(expected, found))
    if is_empty(expected):
        note = EMPTY
    if shapes:
        note = shapes[0]
    broken = not_finite(source, expected)
    if broken is not None:
        note = broken
    never = never_ran(replaced, layers, ran)
    note = never or note
    passed = max(found_errors) <= tolerance and never is None and broken is None
    if not passed and note is None:
        note = unsteady(source, batch, expected, tolerance, dtype)
    result = DtypePass(
        dtype=str(dtype).removeprefix("torch."),
        tolerance=tolerance,
        logits=logits,
        top1_agreement=top1_agreement(expected, found),
        layers=tuple(layers[name] for name in replaced if name in layers),
        passed=passed,
        note=note,
    )
    return result, expected


def _drift(expected: Outputs, converted: nn.Module, batch: Tensor) -> Drift:
    """Error of the logits at the temperatures of the layers, against the source."""
    own = temperatures(converted).values()
    with evaluating(converted):
        found = logits_of(converted, batch, weights_dtype(converted))
    apart = told_shapes("the outputs", other_shapes(expected, found))
    return Drift(
        temperature=max(own),
        lowest=min(own) if min(own) != max(own) else None,
        logits=output_errors(expected, found),
        top1_agreement=top1_agreement(expected, found),
        note=next(iter(apart), "the outputs hold no number" if is_empty(expected) else None),
    )


def _check_source(source: nn.Module, converted: nn.Module) -> None:
    modules = dict(source.named_modules())
    for name, layer in replacements(converted).items():
        conv = modules.get(name)
        if not isinstance(conv, nn.Conv2d):
            found = type(conv).__name__ if conv is not None else "nothing"
        elif (conv.in_channels, conv.out_channels) != (layer.in_channels, layer.out_channels):
            found = f"a convolution of {conv.in_channels} to {conv.out_channels} channels"
        else:
            continue
        raise RequestError(
            f"{name}: the converted model has a GPSA layer of {layer.in_channels} to {layer.out_channels} channels "
            f"here, the source has {found}; is it the right source?"
        )


def compare_as_run(converted: nn.Module, batch: Tensor, config: VerificationConfig) -> AsRun:
    """Compare the model as it is run with its attention, in float32: every layer alone, and the logits end to end."""
    dtype = torch.float32
    model = in_dtype(converted, dtype)
    layers: dict[str, LayerError] = {}

    def try_layer(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        noise = layer_noise(x, name, dtype, config.seed)
        found = layer.forward(noise)
        with use_backend("fused"):
            expected, attended = layer.forward(noise), layer.forward(x)
        layers.setdefault(name, LayerError(name=name, random=errors(expected, found), activation=errors(attended, y)))

    with evaluating(model):
        with watch_layers(model, replacements(model), try_layer):
            found = logits_of(model, batch, dtype)
        with use_backend("fused"):
            expected = logits_of(model, batch, dtype)
    logits = output_errors(expected, found)
    worst, note = max([logits.worst, *(layer.worst for layer in layers.values())]), None
    if worst > config.tolerance_float32:
        with use_backend("fused"):
            note = unsteady(model, batch, expected, config.tolerance_float32, dtype)
    return AsRun(
        backend=backend(),
        dtype="float32",
        tolerance=config.tolerance_float32,
        logits=logits,
        top1_agreement=top1_agreement(expected, found),
        layers=tuple(layers.values()),
        passed=worst <= config.tolerance_float32,
        note=note,
    )
