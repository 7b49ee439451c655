"""Is the converted model the same function? An independent witness: it knows neither the surgery nor its choices.

It compares what comes out: layer by layer, on random inputs and on the activations that really reach the layer, and end
to end on logits; in float32 and float64. The attention always runs; nothing here calls a convolution in its place.
"""

import copy
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.config import HARD_TEMPERATURE, VerificationConfig, build
from tcnn.conversion.report import Drift, DtypePass, ErrorStats, LayerError, VerificationReport
from tcnn.conversion.trace import evaluating, input_shape
from tcnn.errors import RequestError
from tcnn.layers.filters import is_standardised
from tcnn.layers.gpsa import GPSA2d


def verify(
    source: nn.Module,
    converted: nn.Module,
    config: VerificationConfig | None = None,
    images: Tensor | None = None,
    randomise: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: object,
) -> VerificationReport:
    """Compare a converted model with its source.

    Args:
        source: the CNN (for a ``stride="remove"`` conversion: `without_stride(cnn)`).
        converted: its conversion; layers are matched by dotted name.
        config: tolerances and sizes; or give its fields as keywords: ``verify(a, b, tolerance_float32=1e-6)``.
        images: (B, C, H, W), normalised as the model expects; standard normal noise when None.
        randomise: give every normalisation layer random statistics, scales and shifts during the comparison. Use it
            with random weights: fresh networks scale many residual branches by exactly zero, which hides any error.
        progress: called with the name of every step before it begins.

    Equivalence is a property of the hard limit, so it is measured at τ = 1/46 even when the model stands at another
    temperature; what the model does there is in `drift` (τ = 1) and `written`.

    Returns: a `VerificationReport`; nothing is raised for a failure, see `passed` and `failure()`. Neither model is
    changed. Relative errors are in L2 and against the largest value; the larger of the two must be in tolerance.
    """
    config = config or build(VerificationConfig, options)
    _check_source(source, converted)
    batch = _images(source, config) if images is None else images
    dtypes = [torch.float32, torch.float64] if config.float64 else [torch.float32]
    own = max(float(layer.temperature) for layer in _replacements(converted).values())
    hard = min(own, HARD_TEMPERATURE)
    with _exact_arithmetic(), torch.no_grad(), randomised(source, converted, batch, config.seed, enabled=randomise):
        with at_temperature(converted, hard):
            passes, expected = [], []
            for dtype in dtypes:
                if progress is not None:
                    progress(str(dtype).removeprefix("torch."))
                result, logits = _compare(source, converted, batch, dtype, config)
                passes.append(result)
                expected.append(logits)
            if config.float64:
                rounding = errors(expected[1], expected[0]).worst
                passes[0] = _allow_for_rounding(passes[0], passes[1], rounding)
        if progress is not None:
            progress("drift")
        drift = _drift(expected[0], converted, batch, 1.0)
        between = own > HARD_TEMPERATURE * 1.01 and own != 1
        written = _drift(expected[0], converted, batch, own) if between else None
    return VerificationReport(
        passed=all(result.passed for result in passes),
        temperature=hard,
        images=f"{'noise' if images is None else 'images'} {'×'.join(map(str, batch.shape))}",
        seed=config.seed,
        statistics_randomised=randomise,
        passes=tuple(passes),
        drift=drift,
        written=written,
    )


def errors(reference: Tensor, other: Tensor) -> ErrorStats:
    """How far `other` is from `reference`, taken in float64; a non-finite value anywhere counts as infinite error."""
    a, b = reference.double().flatten(), other.double().flatten()
    if a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()):
        return ErrorStats(max_abs=torch.inf, relative=torch.inf, max_relative=torch.inf, cosine=0.0)
    difference, norm, largest = b - a, a.norm(), a.abs().max()
    max_abs = difference.abs().max().item()
    if norm == 0:  # two silent outputs agree; anything beside a silent reference does not
        same = max_abs == 0
        return ErrorStats(
            max_abs=max_abs, relative=0.0 if same else torch.inf, max_relative=0.0 if same else torch.inf,
            cosine=1.0 if same else 0.0,
        )  # fmt: skip
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    return ErrorStats(
        max_abs=max_abs,
        relative=(difference.norm() / norm).item(),
        max_relative=max_abs / largest.item(),
        cosine=cosine,
    )


def _compare(
    source: nn.Module, converted: nn.Module, batch: Tensor, dtype: torch.dtype, config: VerificationConfig
) -> tuple[DtypePass, Tensor]:
    """One dtype, and the source's logits in it.

    The source runs once, and every replacement is tried on what its convolution got and gave.
    """
    replacements = _replacements(converted)
    layers: dict[str, LayerError] = {}

    def try_layer(name: str, conv: nn.Module, x: Tensor, y: Tensor) -> None:
        layer = _in_dtype(replacements[name], dtype)
        noise = torch.randn(x.shape, dtype=dtype, generator=_generator(config.seed, name)).to(x.device)
        random = errors(conv.forward(noise), layer(noise))
        layers.setdefault(name, LayerError(name=name, random=random, activation=errors(y, layer(x))))

    reference = _in_dtype(source, dtype)
    baked = any(is_standardised(reference.get_submodule(name)) for name in replacements)
    with evaluating(reference), _watching(reference, replacements, try_layer):
        expected = _logits(reference, batch, dtype)
    del reference
    candidate = _in_dtype(converted, dtype)
    with evaluating(candidate):
        found = _logits(candidate, batch, dtype)
    rounded = baked and dtype == torch.float64 and next(converted.parameters()).dtype != torch.float64
    tight = dtype == torch.float64 and not rounded
    tolerance = config.tolerance_float64 if tight else config.tolerance_float32
    logits = errors(expected, found)
    found_errors = [logits.worst, *(e.worst for layer in layers.values() for e in _both(layer))]
    note = "standardised filters are stored rounded to float32, so its tolerance applies" if rounded else None
    if set(layers) != set(replacements):
        note = f"never ran: {', '.join(sorted(set(replacements) - set(layers)))}"
    result = DtypePass(
        dtype=str(dtype).removeprefix("torch."),
        tolerance=tolerance,
        logits=logits,
        top1_agreement=_agreement(expected, found),
        layers=tuple(layers[name] for name in replacements if name in layers),
        passed=max(found_errors) <= tolerance and set(layers) == set(replacements),
        note=note,
    )
    return result, expected


def _allow_for_rounding(single: DtypePass, double: DtypePass, rounding: float) -> DtypePass:
    """A deep enough network rounds its own float32 logits further off than the tolerance; no copy can be nearer.

    Only where float64 proves equality and every layer is within the float32 tolerance, the logits may differ by twice
    what the source's own float32 logits differ from its float64 ones.
    """
    layers_hold = all(e.worst <= single.tolerance for layer in single.layers for e in _both(layer))
    if single.passed or not (double.passed and layers_hold and single.note is None):
        return single
    if single.logits.worst > 2 * rounding:
        return single
    note = f"within twice the source's own rounding, {rounding:.1e} here; every layer is within {single.tolerance:.0e}"
    return single.model_copy(update={"passed": True, "note": note})


def _drift(expected: Tensor, converted: nn.Module, batch: Tensor, temperature: float) -> Drift:
    """How far softer attention moves the logits from the source's."""
    with evaluating(converted), at_temperature(converted, temperature):
        found = _logits(converted, batch, next(converted.parameters()).dtype)
    return Drift(temperature=temperature, logits=errors(expected, found), top1_agreement=_agreement(expected, found))


@contextmanager
def at_temperature(model: nn.Module, temperature: float) -> Iterator[None]:
    """Set τ of every GPSA layer for a while."""
    layers = list(_replacements(model).values())
    before = [layer.temperature.clone() for layer in layers]
    try:
        for layer in layers:
            layer.temperature.fill_(temperature)
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.temperature.copy_(value)


@contextmanager
def randomised(
    source: nn.Module, converted: nn.Module, batch: Tensor, seed: int = 0, enabled: bool = True
) -> Iterator[None]:
    """Make both models look trained for a while, alike, then put everything back.

    A fresh network's zero-initialised residual scales switch off the very branches that were converted, so scales and
    shifts are drawn at random; normalisation statistics are those of `batch`, jittered, as training would have left
    them. Without that a deep network blows its rounding errors up a thousandfold, and they would pass for conversion
    errors.
    """
    names = _statistics(source, tuple(_replacements(converted))) if enabled else []
    tensors = [dict((*model.named_parameters(), *model.named_buffers())) for model in (source, converted)]
    touched: list[tuple[Tensor, Tensor]] = []
    try:
        for name in names:
            if name not in tensors[1] or tensors[1][name].shape != tensors[0][name].shape:
                raise RequestError(f"{name}: source and converted model differ in it; is it the right source?")
            touched.extend((tensor, tensor.clone()) for tensor in (tensors[0][name], tensors[1][name]))
            tensors[0][name].copy_(_random(tensors[0][name], name, seed, centred=name.endswith(("bias", "mean"))))
        if enabled:
            _calibrate(source, batch, seed)
        for name in names:
            tensors[1][name].copy_(tensors[0][name])
        yield
    finally:
        for tensor, value in reversed(touched):
            tensor.copy_(value)


def _calibrate(model: nn.Module, batch: Tensor, seed: int) -> None:
    """Set every running mean and variance from what reaches its layer, give or take 20 %."""

    def measure(name: str, module: Any, args: tuple[Tensor, ...]) -> None:
        x = args[0].transpose(0, 1).flatten(1)
        var, mean = torch.var_mean(x, dim=1, correction=0)
        # A channel may be silent, or one pixel of one image: its scale is then that of its neighbours.
        var = torch.maximum(var, 0.1 * x.square().mean()) + 1e-3
        jitter = 0.2 * _random(mean, name, seed, centred=True)
        module.running_mean.copy_(mean + jitter * var.sqrt())
        module.running_var.copy_(var * (1 + jitter))

    handles = [
        module.register_forward_pre_hook(lambda m, args, name=name: measure(name, m, args))
        for name, module in model.named_modules()
        if isinstance(getattr(module, "running_var", None), Tensor)
    ]
    try:
        with evaluating(model):
            _logits(model, batch, next(model.parameters()).dtype)
    finally:
        for handle in handles:
            handle.remove()


def _random(like: Tensor, name: str, seed: int, centred: bool) -> Tensor:
    """Uniform in [−½, ½) or [½, 1½), the same for a name and seed whatever the device or dtype."""
    drawn = torch.rand(like.shape, generator=_generator(seed, name), dtype=torch.float64)
    return (drawn - 0.5 if centred else drawn + 0.5).to(like)


def _statistics(source: nn.Module, replaced: tuple[str, ...]) -> list[str]:
    """What to randomise: all that normalisation layers hold, and every parameter that is still one constant (a residual
    scale, a gain, a bias). The convolutions under comparison keep their own."""
    names = []
    for prefix, module in source.named_modules():
        if prefix in replaced:
            continue
        normalises = hasattr(module, "running_var") or "Norm" in type(module).__name__
        buffers = module.named_buffers(recurse=False) if normalises else ()
        for key, tensor in (*module.named_parameters(recurse=False), *buffers):
            if tensor.is_floating_point() and (normalises or bool((tensor == tensor.flatten()[0]).all())):
                names.append(f"{prefix}.{key}" if prefix else key)
    return [name for name, _ in (*source.named_parameters(), *source.named_buffers()) if name in set(names)]


@contextmanager
def _watching(model: nn.Module, names: dict[str, GPSA2d], call: object) -> Iterator[None]:
    def hook(name: str) -> object:
        return lambda module, args, output: call(name, module, args[0], output)  # type: ignore[operator]

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _exact_arithmetic() -> Iterator[None]:
    """No TF32 on a GPU: its ten bits of mantissa would be taken for a conversion error."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _check_source(source: nn.Module, converted: nn.Module) -> None:
    modules = dict(source.named_modules())
    for name in _replacements(converted):
        if not isinstance(modules.get(name), nn.Conv2d):
            found = type(modules[name]).__name__ if name in modules else "nothing"
            raise RequestError(
                f"{name}: the converted model has a GPSA layer here, the source has {found}; is it the right source?"
            )


def _replacements(model: nn.Module) -> dict[str, GPSA2d]:
    found = {name: module for name, module in model.named_modules() if isinstance(module, GPSA2d)}
    if not found:
        raise RequestError(f"{type(model).__name__} has no GPSA layer: nothing to verify")
    return found


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model itself if it has the dtype already, else a copy in it that never duplicates the originals."""
    if all(p.dtype == dtype for p in model.parameters() if p.is_floating_point()):
        return model
    memo: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        twin = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.clone()
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)


def _logits(model: nn.Module, batch: Tensor, dtype: torch.dtype) -> Tensor:
    device = next(model.parameters()).device
    # One image at a time in float64: its activations, not its weights, would set the memory that a conversion takes.
    parts = batch.split(1) if dtype == torch.float64 else (batch,)
    outputs = [model(part.to(device=device, dtype=dtype)) for part in parts]
    return torch.cat([_flat(output) for output in outputs])


def _flat(output: Any) -> Tensor:
    """Logits, or all the feature maps of a feature extractor side by side, (B, …)."""
    return output if isinstance(output, Tensor) else torch.cat([part.flatten(1) for part in output], dim=1)


def _images(model: nn.Module, config: VerificationConfig) -> Tensor:
    shape = (config.batch_size, *input_shape(model, config.input_size))
    return torch.randn(shape, generator=torch.Generator().manual_seed(config.seed))


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))


def _agreement(a: Tensor, b: Tensor) -> float:
    return (a.flatten(1).argmax(1) == b.flatten(1).argmax(1)).double().mean().item()


def _both(layer: LayerError) -> tuple[ErrorStats, ...]:
    return (layer.random,) if layer.activation is None else (layer.random, layer.activation)
