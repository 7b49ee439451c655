"""Which of several exact ways to compute the same thing is the fastest on this GPU: measured once for inputs of a kind.

All ways give the same to rounding, so an answer can never make a result wrong. The first call with inputs of a kind
(shapes, dtype, device, which of them need gradients) runs every way on random inputs of that kind and waits for the
GPU; later calls look the answer up and wait for nothing. Nothing is measured where it would do harm or would tell
nothing, and the answer is then the first way:

- under a compiler, a tracer, `torch.func`, or with fake tensors: there is nothing to run;
- while a CUDA graph is captured: to wait is an error there;
- with `torch.use_deterministic_algorithms(True)`: two runs must not choose differently;
- on a CPU.
"""

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

Way = Callable[..., Tensor]
Timer = Callable[[Callable[[], object], torch.device], float]
"""Runs something on a device several times; returns seconds for one run."""

_answers: dict[Hashable, str] = {}
_measuring = threading.Lock()


def chosen(ways: Mapping[str, Way], inputs: Sequence[Tensor], timer: Timer | None = None) -> str:
    """The name of the fastest way to compute a tensor from such inputs; the first where that is not known or measured.

    Args:
        ways: by name. Each takes the inputs and returns one tensor, with gradients for the inputs that need them.
        inputs: their values are not used and their gradients not touched.
        timer: measures; None is `gpu_seconds`. With a timer of your own, a CPU is measured, too.
    """
    default = next(iter(ways))
    if len(ways) == 1 or not _measurable(inputs, anywhere=timer is not None):
        return default
    kind = tuple(ways), torch.is_grad_enabled(), tuple(_kind(tensor) for tensor in inputs)
    if kind not in _answers:
        with _measuring:
            if kind not in _answers:
                _answers[kind] = _fastest(ways, inputs, timer or gpu_seconds)
    return _answers[kind]


def forget() -> None:
    """Every kind of inputs is measured again."""
    _answers.clear()


def gpu_seconds(run: Callable[[], object], device: torch.device, runs: int = 5) -> float:
    """Seconds for one run by the GPU's own clock, after two that compile and warm up."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # what the caller has launched must not be timed
        for _ in range(2):
            run()
        start.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1000 / runs


def _measurable(inputs: Sequence[Tensor], anywhere: bool) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch.are_deterministic_algorithms_enabled() or any(isinstance(tensor, FakeTensor) for tensor in inputs):
        return False
    if anywhere:
        return True
    return inputs[0].device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def _kind(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _fastest(ways: Mapping[str, Way], inputs: Sequence[Tensor], timer: Timer) -> str:
    """In a thread of its own, where no hook or mode of the caller is in force: a checkpoint counts what is saved."""
    grad, device = torch.is_grad_enabled(), inputs[0].device
    kind = device.type
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def measure() -> dict[str, float]:
        times = {}
        with torch.set_grad_enabled(grad), torch.autocast(kind, enabled=autocast[0], dtype=autocast[1]):
            for name, way in ways.items():
                try:
                    times[name] = timer(_rehearsal(way, inputs), device)
                except torch.OutOfMemoryError:  # whatever fits is faster
                    continue
                except Exception as error:  # a kernel is compiled here for the first time, which needs more than a GPU
                    warnings.warn(f"{name} does not run here and will not be used: {error}", stacklevel=2)
        return times

    with ThreadPoolExecutor(1) as thread:
        times = thread.submit(measure).result()
    return min(times, key=lambda name: times[name], default=next(iter(ways)))


def _rehearsal(way: Way, inputs: Sequence[Tensor]) -> Callable[[], object]:
    """One run of a way, forward, and backward if anything needs gradients, on random inputs that are its own."""
    generator = torch.Generator(inputs[0].device).manual_seed(0)
    played = [torch.empty_like(tensor).uniform_(generator=generator) for tensor in inputs]
    moving = [ours for ours, theirs in zip(played, inputs, strict=True) if theirs.requires_grad]
    for tensor in moving:
        tensor.requires_grad_()
    if not (moving and torch.is_grad_enabled()):
        return lambda: way(*played)
    upstream: list[Tensor] = []

    def both() -> None:
        out = way(*played)
        upstream[:] = upstream or [torch.ones_like(out)]
        torch.autograd.grad(out, moving, upstream[0])

    return both
