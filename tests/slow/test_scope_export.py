"""`torch.export` of layers with a content scope: one program for every batch and size of the map."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

from tcnn.layers import GPSA2d


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": "dynamic", "stride": 2}], ids=str)
@pytest.mark.parametrize("content", ["window:4", "pooled:4"])
@torch.no_grad()
def test_exports_with_dynamic_batch_and_size(content: str, options: dict[str, object]) -> None:
    """`Dim.DYNAMIC` is an error where a size would be frozen into the program."""
    torch.manual_seed(0)
    layer = GPSA2d(4, 6, 3, temperature=1.0, content=content, **options).eval()  # type: ignore[arg-type]
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program: Callable[[Tensor], Tensor] = export(layer, (torch.randn(2, 4, 9, 10),), dynamic_shapes=(dynamic,)).module()
    for shape in ((2, 4, 9, 10), (3, 4, 7, 12), (5, 4, 16, 6)):
        x = torch.randn(shape)
        assert relative_error(program(x), layer(x)) < 1e-6
