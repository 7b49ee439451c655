"""Memory: what a training step takes, from shapes alone, what is free on this machine, and what a process has taken."""

import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
from timm.optim import Lookahead
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tcnn.layers.backends import convolution
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.execution import fake_as_real
from tcnn.models.copying import copied, memo_of
from tcnn.training.recipe.optim import parameter_states

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO, GROUP, GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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
    state, fake = optimizer_bytes(model, create), FakeTensorMode()
    models = [_fake(model, fake)] if teacher is None else [_fake(model, fake), _fake(teacher, fake)]
    with fake, fake_as_real():
        optimizer, batch = create(models[0]), torch.empty(images)
        tracker = _Tracker()
        tracker.track_external(*models, batch)
        with tracker, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            for distilled in models[1:]:
                with torch.no_grad():
                    distilled(batch)
            models[0](batch).float().square().mean().backward()
            passes = _peak(tracker)
            with suppress(DataDependentOutputException):  # then what it takes beside its state is not known
                for _ in range(2):
                    _step(optimizer)
            # The first step makes the optimizer's state, which is there during the passes of all others.
            return max(passes + state, _peak(tracker))


def optimizer_bytes(model: nn.Module, create: Callable[[nn.Module], Optimizer]) -> int:
    """Bytes of the state that the optimizer of a model keeps, from shapes alone where its steps ask for no values."""
    fake = FakeTensorMode()
    try:
        twin = _fake(model, fake)
        with fake, fake_as_real():
            return _state_bytes(twin, create(twin))
    except DataDependentOutputException:  # as of muon and adamp
        twin = copied(model)
        return _state_bytes(twin, create(twin))


def _state_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state after a step with any gradients."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    _step(optimizer)
    kept = (value for state in parameter_states(optimizer).values() for value in state.values())
    return sum(value.nbytes for value in kept if isinstance(value, Tensor))


def _step(optimizer: Optimizer) -> None:
    """A step that leaves all of the optimizer's state: timm's Lookahead makes slow weights only after some more."""
    optimizer.step()
    if isinstance(optimizer, Lookahead):
        optimizer.sync_lookahead()


class _Tracker(MemTracker):
    """Frozen parameters have no gradient, and torch's tracker hooks the gradient of all: theirs count as hooked."""

    def _track_module_params_and_buffers(self, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        no_hook = RemovableHandle(OrderedDict())
        for parameter in module.parameters():
            if not parameter.requires_grad:
                self._param_to_grad_hook_handles.setdefault(parameter, (no_hook, no_hook))
        return super()._track_module_params_and_buffers(module, install_grad_hooks)


def _peak(tracker: MemTracker) -> int:
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _fake(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """A copy of the model whose tensors have shapes and no data."""
    memo = memo_of(model)
    for tensor in (*model.parameters(), *model.buffers()):
        twin: Tensor = fake.from_tensor(tensor.detach())
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    made = copied(model, memo)
    for own, other in zip(model.modules(), made.modules(), strict=True):
        if isinstance(own, GPSA2d) and isinstance(other, GPSA2d):
            other.known_hard = convolution.is_hard(own.tensors, own.geometry)  # which needs the values
    return made


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a run may take beside what is taken: of a GPU, or of this machine and container; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [_field(MEMINFO, "MemAvailable"), *_group_bytes()]
    return min((each for each in free if each is not None), default=None)


def _group_bytes() -> Iterator[int]:
    """What the control groups (version 2) of this process, a container's for instance, leave it."""
    with suppress(OSError, ValueError):
        own = next(line for line in GROUP.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
        place = GROUPS / own.removeprefix("0::").lstrip("/")
        for group in (place, *place.parents):
            with suppress(OSError, ValueError):  # there is no limit: "max", or no such file
                limit = int((group / "memory.max").read_text(encoding="utf-8"))
                stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
                # The page cache counts, but is given up for a process that needs the memory.
                yield max(
                    0, limit - int((group / "memory.current").read_text(encoding="utf-8")) + int(stat["inactive_file"])
                )
            if group == GROUPS:
                return


def reset_peak(device: torch.device) -> None:
    """Let `peak_bytes` count from now on, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        RESET.write_text("5", encoding="utf-8")


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that the run has taken: of the GPU, by PyTorch's allocator; else of this process, resident."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else _resident("VmHWM")


def taken_bytes(device: torch.device) -> int:
    """Bytes that this process has resident now; on a GPU, where memory is counted apart, none."""
    return 0 if device.type == "cuda" else _resident("VmRSS") or 0


def _resident(field: str) -> int | None:
    """A field of this process; elsewhere than on Linux its peak; None on Windows."""
    found = _field(STATUS, field)
    if found is not None or sys.platform == "win32":
        return found
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_disk_bytes(path: Path) -> int:
    """Free bytes of the disk that a file or directory will be on."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _field(file: Path, name: str) -> int | None:
    """A field of a file of /proc in bytes; None where there is none."""
    with suppress(OSError, StopIteration):
        line = next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024
    return None
