"""Random values to compare models on, the same on every device for a seed: weights that look trained, and noise images.

Fresh weights would hide errors: a comparison has to be sensitive to every branch.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig
from tcnn.errors import RequestError
from tcnn.models.checks import refuse_inference_tensors
from tcnn.models.running import first_of, logits_of, replacements, told_in_one_line, weights_dtype
from tcnn.models.trace import evaluating, input_shape


@contextmanager
def randomised(
    source: nn.Module, converted: nn.Module, batch: Tensor, seed: int = 0, enabled: bool = True
) -> Iterator[None]:
    """Context in which both models have the same random, trained-looking weights; afterwards everything is restored.

    A fresh network's zero-initialised residual scales switch off the very branches that were converted, so scales and
    shifts are drawn at random; normalisation statistics are those of `batch`, jittered, as training would have left
    them. Without that a deep network amplifies its rounding errors a thousandfold, and they would be taken for
    conversion errors.

    Raises `RequestError` for models that do not belong together, and for one of `torch.inference_mode`.
    """
    for model in (source, converted) if enabled else ():
        refuse_inference_tensors(model, "randomise")
    names = _statistics(source, tuple(replacements(converted))) if enabled else []
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
    """Set every running mean and variance from the input of its layer, varied by up to 20 %."""
    measured: list[tuple[Tensor, Tensor]] = []

    def measure(name: str, module: Any, x: Tensor) -> None:
        x = x.transpose(0, 1).flatten(1)
        var, mean = torch.var_mean(x, dim=1, correction=0)
        # A channel may be silent, or one pixel of one image: its scale is then that of its neighbours.
        var = torch.maximum(var, 0.1 * x.square().mean()) + 1e-3
        jitter = 0.2 * _random(mean, name, seed, centred=True)
        own = [(module.running_mean, mean + jitter * var.sqrt()), (module.running_var, var * (1 + jitter))]
        for statistic, value in own:
            statistic.copy_(value)
        measured.extend(own)

    handles = [
        module.register_forward_pre_hook(
            lambda m, args, named, name=name: measure(name, m, first_of(args, named)), with_kwargs=True
        )
        for name, module in model.named_modules()
        if isinstance(getattr(module, "running_var", None), Tensor)
    ]
    try:
        with evaluating(model), told_in_one_line(model, batch):
            logits_of(model, batch, weights_dtype(model))
    finally:
        for handle in handles:
            handle.remove()
    for statistic, value in measured:  # which the pass, as any, has left as they were
        statistic.copy_(value)


def _random(like: Tensor, name: str, seed: int, centred: bool) -> Tensor:
    """Uniform random values in [−½, ½) or [½, 1½), the same for a name and seed on every device and in every dtype."""
    drawn = torch.rand(like.shape, generator=generator(seed, name), dtype=torch.float64, device="cpu")
    return (drawn - 0.5 if centred else drawn + 0.5).to(like)


def _statistics(source: nn.Module, replaced: tuple[str, ...]) -> list[str]:
    """Names of the tensors to randomise: normalisation layers, and every parameter with one constant value.

    Constants are residual scales, gains and biases; the convolutions under comparison keep their own.
    """
    names = []
    for prefix, module in source.named_modules():
        if prefix in replaced:
            continue
        normalises = hasattr(module, "running_var") or "Norm" in type(module).__name__
        buffers = module.named_buffers(recurse=False) if normalises else ()
        for key, tensor in (*module.named_parameters(recurse=False), *buffers):
            if tensor.is_floating_point() and (normalises or _is_constant(tensor)):
                names.append(f"{prefix}.{key}" if prefix else key)
    return [name for name, _ in (*source.named_parameters(), *source.named_buffers()) if name in set(names)]


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())


def generator(seed: int, name: str) -> torch.Generator:
    """Random generator on the CPU for one layer or tensor, seeded by its name and the seed only."""
    return torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))


def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise in float32 on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")


def noise_images(model: nn.Module, config: VerificationConfig) -> Tensor:
    """A batch of noise in the shape that a model takes, (B, C, H, W); size and seed are the configuration's."""
    return noise((config.batch_size, *input_shape(model, config.input_size)), config.seed)


def layer_noise(x: Tensor, name: str, dtype: torch.dtype, seed: int) -> Tensor:
    """Noise in the shape and on the device of a layer's input, drawn for this layer by its name.

    Of one image at least: what a detector does with each thing that it finds may be given none.
    """
    shape = max(1, len(x)), *x.shape[1:]
    return torch.randn(shape, dtype=dtype, generator=generator(seed, name), device="cpu").to(x.device)
