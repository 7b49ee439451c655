"""How many operators a layer calls, and how much it holds: on a GPU every call is a launch, whatever the batch.

The meta device stands for one with 16 GiB; views, which launch nothing, and allocations are not counted.
"""

import math

import pytest
import torch
from sampled import sampled
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tcnn.layers import GPSA2d
from tcnn.layers.backends import chunks
from tcnn.layers.terms import products

MOST_FORWARD, MOST_BACKWARD = 36, 68
"""Of a soft layer on a square map."""
MOST_FOR_A_PART = 10, 26
"""More for each part into which a processor cuts a batch, and computes once more where it was not kept."""
LAUNCH_NOTHING = {
    "view", "_unsafe_view", "unsqueeze", "squeeze", "transpose", "permute", "slice", "select", "t", "detach", "alias",
    "expand", "unbind", "split", "split_with_sizes", "unfold", "as_strided", "_reshape_alias", "new_empty",
    "empty_like", "empty", "new_empty_strided", "empty_strided",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_slow_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU many matrices are one product, which beside such a BLAS they are not."""
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: False)


class Launches(TorchDispatchMode):
    """Counts operators, and the bytes of the largest tensor that one puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.count += func.overloadpacket.__name__ not in LAUNCH_NOTHING
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.nbytes)
        return result


def launches(device: str, batch: int, channels: int, side: int) -> tuple[Launches, Launches]:
    layer = GPSA2d(channels, channels, 3, padding=1, temperature=1.0, device=device)
    x = torch.zeros(batch, channels, side, side, device=device, requires_grad=True)
    with Launches() as forward:
        y = layer(x)
    gradient = torch.ones_like(y)
    with Launches() as backward:
        y.backward(gradient)
    return forward, backward


@pytest.mark.parametrize(("batch", "side"), [(1, 7), (64, 7), (1024, 7), (1, 14), (64, 14), (256, 14), (8, 32)])
def test_launches_do_not_grow_with_the_batch(batch: int, side: int) -> None:
    """512 channels. Parts sized for a processor's caches once cost 734 and 1,980 calls at batch 256."""
    forward, backward = launches("meta", batch, 512, side)
    assert forward.count <= MOST_FORWARD and backward.count <= MOST_BACKWARD, (forward.count, backward.count)


def test_what_does_not_fit_is_cut_into_as_few_parts_as_fit() -> None:
    """32×32 at batch 256: whole maps would take 10 GiB."""
    forward, backward = launches("meta", 256, 512, 32)
    memory = chunks.total_memory(torch.device("meta"))
    assert memory / 20 < max(forward.largest, backward.largest) <= memory / 10
    few = math.ceil(256 * 9 * 1024 * 1025 * 4 / (memory / 10))
    assert forward.count < 60 + 12 * few
    assert backward.count < 80 + 30 * few


@pytest.mark.parametrize("batch", sampled([2, 23, 64, 256], [2, 23]))
def test_a_processor_gets_parts_of_its_c_librarys_blocks(batch: int) -> None:
    """In training of up to 32 MiB, else, if it is more than one, of half of that; a call costs microseconds there."""
    forward, backward = launches("cpu", batch, 16, 14)
    size = 9 * 196 * 200
    assert forward.largest <= 4 * max(chunks.CPU_CHUNK, batch * 16 * 14 * 14 * 9)  # or what all heads bring together
    parts = math.ceil(batch / (chunks.CPU_CHUNK // size))
    assert forward.count <= MOST_FORWARD + MOST_FOR_A_PART[0] * parts
    assert backward.count <= MOST_BACKWARD + MOST_FOR_A_PART[1] * parts
    layer, x = GPSA2d(16, 16, 3, padding=1, temperature=1.0), torch.zeros(batch, 16, 14, 14)
    with Launches() as inference, torch.no_grad():
        layer(x)
    parts = 1 if batch * size <= chunks.CPU_CHUNK else math.ceil(batch / (chunks.CPU_CHUNK // size // 2))
    assert inference.count <= MOST_FORWARD + MOST_FOR_A_PART[0] * parts
