"""Memory of a training step, from shapes alone: what its tensors take at once, computed on fake tensors."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import Optimizer

from tcnn.layers.backends import convolution
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.eager import fake_as_real
from tcnn.models.running import empty_tables
from tcnn.training.recipe.optim import memory_of


def step_bytes(
    model: nn.Module,
    create: Callable[[nn.Module], Optimizer],
    images: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    teacher: nn.Module | None = None,
) -> int:
    """The most bytes that tensors take at once in a training step after the first; only shapes are computed.

    Parameters, gradients, the optimizer's state, what autograd keeps and temporary tensors are counted. What libraries
    work with and allocators lose is not, so a process takes more.

    Args:
        model: in the mode that it is trained in; it is not changed. Layers in the hard limit count as convolutions.
        create: makes the optimizer of a model.
        images: shape of a batch, (B, C, H, W).
        dtype: of autocast.
        teacher: the model that is distilled.
    """
    fake = FakeTensorMode()
    models = [_fake(model, fake)] if teacher is None else [_fake(model, fake), _fake(teacher, fake)]
    with fake, fake_as_real():
        optimizer, batch = create(models[0]), torch.empty(images)
        tracker = MemTracker()
        tracker.track_external(*models, batch)
        with tracker, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            for distilled in models[1:]:
                with torch.no_grad():
                    distilled(batch)
            models[0](batch).float().square().mean().backward()
            passes = _peak(tracker)
            optimizer.step()
            # The first step makes the optimizer's state, which is there during the passes of all others.
            kept = (value for state in memory_of(optimizer).values() for value in state.values())
            return max(passes + sum(v.nbytes for v in kept if isinstance(v, Tensor)), _peak(tracker))


def _peak(tracker: MemTracker) -> int:
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _fake(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """A copy of the model whose tensors have shapes and no data."""
    memo = empty_tables(model)
    for tensor in (*model.parameters(), *model.buffers()):
        twin: Tensor = fake.from_tensor(tensor.detach())
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    made = copy.deepcopy(model, memo)
    for own, other in zip(model.modules(), made.modules(), strict=True):
        if isinstance(own, GPSA2d) and isinstance(other, GPSA2d):
            other.known_hard = convolution.is_hard(own.tensors, own.geometry)  # which needs the values
    return made
