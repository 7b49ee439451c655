"""Whether a model computes in several processes what it would in one, tried on random images before the first step.

`SyncBatch` knows how PyTorch's functions draw random numbers and average over a batch. What a module does by itself,
with Python's random numbers, a mean over its images or a kernel of its own, it cannot know; such modules are found
here.

Shapes: n images of one process in the trial, W processes.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tcnn.formatting import few
from tcnn.models.copying import copied
from tcnn.training.distributed import Processes
from tcnn.training.updates.sync_batch import sync_batch

REORDERED = 1e-3
"""Largest difference of outputs, relative to their norm, that is rounding: of TF32 at the most."""
OF_STATISTICS = 1e-5
"""The same of all statistics of a module together: a mean may be next to 0."""
Visit = Callable[[str, Any], Any]
"""Called with a module's name and output; returns what takes the output's place."""


def trial_images(images: int) -> int:
    """With how many images of a process to try a pass of so many: the least above 1 that divide them.

    What they do not divide, as a number of channels, no multiple divides: a tensor that is taken to have a part for
    every image in the pass is so in the trial.
    """
    return next((n for n in range(2, images + 1) if images % n == 0), 1)


@torch.no_grad()
def apart(model: nn.Module, x: Tensor, processes: Processes) -> list[str] | None:
    """Names of the modules that do not give this process what one process would; the same in every process.

    None if one process cannot compute them: too small a memory, a model that works with batches of one size only.

    Each is judged alone, as its input and what its own modules return are those of one process.

    Args:
        model: in its modes of training; it stays as it is.
        x: images of all processes, (W·n, C, H, W), the same in each.
    """
    alone, shared = copied(model), copied(model)
    expected: dict[str, deque[Any]] = defaultdict(deque)
    found: set[str] = set()

    def keep(name: str, output: Any) -> Any:
        expected[name].append(_cloned(output))
        return output

    def judge(name: str, output: Any) -> Any:
        leaves, wholes = tree_leaves(output), tree_leaves(expected[name].popleft() if expected[name] else None)
        own = [_own(a, b, processes) for a, b in zip(wholes, leaves, strict=False)]
        if len(own) < len(leaves) or not all(map(_alike, own, leaves)):
            found.add(name)
        right = iter([a if _fits(a, b) else b for a, b in zip(own, leaves, strict=False)])
        return _cloned(tree_map(lambda leaf: next(right, leaf), output))

    try:
        _pass(alone, x, keep)
        tried = True
    except Exception:  # of any module, whose run may work all the same
        tried = False
    if not all(processes.gather(tried)):
        return None
    mine = x.chunk(processes.world)[processes.rank]
    with sync_batch(processes, len(mine)):
        _pass(shared, mine, judge)
    for (name, one), two in zip(alone.named_modules(), shared.modules(), strict=True):
        if not _alike(_statistics(one), _statistics(two), OF_STATISTICS):
            found.add(name)
    return sorted(set().union(*processes.gather(found)))


def apart_note(model: nn.Module, names: list[str] | None) -> str | None:
    """What is to be known before a run with such modules, in one line."""
    if names is None:
        return (
            "several processes: a pass over random images failed in one process, so it is not known whether each "
            "module computes the same in several"
        )
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kinds[type(model.get_submodule(name)).__name__].append(name or "the model itself")
    if not kinds:
        return None
    listed = ", ".join(f"{kind} ({few(own)})" for kind, own in sorted(kinds.items()))
    return (
        f"several processes: {listed} draws random numbers or averages in each process by itself; the run is not that "
        "of one process"
    )


def _pass(model: nn.Module, x: Tensor, visit: Visit) -> None:
    """A forward pass in which every module begins, and goes on after each of its own, with a known random state."""
    numbers = count()

    def seed() -> None:
        torch.manual_seed(next(numbers))

    def after(name: str, module: nn.Module, args: Any, output: Any) -> Any:
        seed()
        return visit(name, output)

    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_: seed())
        module.register_forward_hook(partial(after, name))
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        model(x)


def _statistics(module: nn.Module) -> Tensor:
    """All buffers of a module, but not those of modules in it, as one vector."""
    return torch.cat([torch.zeros(0), *(b.detach().double().flatten().cpu() for b in module.buffers(recurse=False))])


def _cloned(output: Any) -> Any:
    """As it is now, whatever is written into it later."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)


def _own(whole: Any, part: Any, processes: Processes) -> Any:
    """What of an output for all images is this process's, of which `part` tells the shape, on whatever axis."""
    if not (isinstance(whole, Tensor) and isinstance(part, Tensor) and whole.dim() == part.dim()):
        return whole
    differing = [axis for axis in range(part.dim()) if whole.shape[axis] != part.shape[axis]]
    return whole.chunk(processes.world, differing[0])[processes.rank] if len(differing) == 1 else whole


def _fits(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _alike(a: Any, b: Any, tolerance: float = REORDERED) -> bool:
    """Whether two outputs differ by rounding at most; what is no tensor is not compared."""
    if not isinstance(b, Tensor):
        return True
    if not _fits(a, b):
        return False
    a, b = torch.nan_to_num(a.double()), torch.nan_to_num(b.double())
    return bool((a - b).norm() <= tolerance * a.norm())
