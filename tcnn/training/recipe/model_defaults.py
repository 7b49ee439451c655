"""Resolution and stochastic depth by model, as in the paper (Transformed CNNs, Table 1)."""

from typing import Any, NamedTuple

from tcnn.config import FinetuneConfig


class PaperRow(NamedTuple):
    """One row of Table 1: the resolution of fine-tuning in pixels, and the stochastic depth rate."""

    size: int
    drop_path: float


TABLE_1 = {
    "resnetrs50": PaperRow(224, 0.1),
    "resnetrs101": PaperRow(224, 0.1),
    "resnetrs152": PaperRow(320, 0.2),
    "resnetrs200": PaperRow(320, 0.2),
    "resnetrs270": PaperRow(320, 0.2),
    "resnetrs350": PaperRow(320, 0.2),
}
LARGE = 60e6
"""Number of parameters from which a model gets the stochastic depth of Table 1's larger half."""


def size_for(config: FinetuneConfig, architecture: str, cfg: dict[str, Any]) -> tuple[int, int]:
    """Image size for training, (height, width): the configured one, the paper's, or the model's own test size.

    timm's test size is usually above that of training, and fine-tuning at a higher resolution is what the paper does.
    """
    if config.size is not None:
        return (config.size, config.size) if isinstance(config.size, int) else config.size
    if architecture in TABLE_1:
        return TABLE_1[architecture].size, TABLE_1[architecture].size
    _, height, width = cfg.get("test_input_size") or cfg.get("input_size") or (3, 224, 224)
    return height, width


def drop_path_for(config: FinetuneConfig, architecture: str, parameters: int) -> float:
    """Stochastic depth rate: the configured one, the paper's, or one of the paper's two by the model's size."""
    if config.drop_path is not None:
        return config.drop_path
    if architecture in TABLE_1:
        return TABLE_1[architecture].drop_path
    return 0.2 if parameters >= LARGE else 0.1
