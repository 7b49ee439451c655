"""Random normal inputs (noise) for comparing models, the same on every device for the same seed."""

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig
from tcnn.models.randomise import generator
from tcnn.models.trace import input_shape


def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise in float32 on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def noise_images(model: nn.Module, config: VerificationConfig) -> Tensor:
    """A batch of noise in the shape that a model takes, (B, C, H, W); size and seed are the configuration's."""
    return noise((config.batch_size, *input_shape(model, config.input_size)), config.seed)


def layer_noise(x: Tensor, name: str, dtype: torch.dtype, seed: int) -> Tensor:
    """Noise in the shape and on the device of a layer's input, drawn for this layer by its name."""
    return torch.randn(x.shape, dtype=dtype, generator=generator(seed, name)).to(x.device)
