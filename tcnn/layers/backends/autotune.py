"""Autotuning: time several exact implementations on this GPU once for each kind of inputs, and use the fastest.

All give the same result to rounding, so a choice can never make a result wrong; that is looked at, too, for what a
compiler makes of a kernel differs between GPUs: one whose output or gradients are others than the first one's is not
used. The first call with inputs of a kind (shapes, dtype, device, which of them need gradients) times every
implementation on random inputs of that kind and waits for the GPU; later calls look the answer up and wait for nothing.
The first implementation is used without timing where timing would do harm or has no meaning:

- under a compiler, a tracer, `torch.func`, or with fake tensors: there is nothing to run;
- while a CUDA graph is captured, unless inputs of this kind were timed before: waiting is an error there;
- with `torch.use_deterministic_algorithms(True)`: two runs must not choose differently;
- on a CPU.
"""

import math
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tcnn.layers.terms.execution import is_eager

Implementation = Callable[..., Tensor]
Timer = Callable[[Callable[[], object], torch.device], float]
"""Times a function on a device; returns seconds per run."""

SAME = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Relative L2 difference of outputs and of gradients up to which rounding explains it, by the coarsest dtype of the
inputs; float32 may be multiplied as TF32."""

_cache: dict[Hashable, str] = {}
_measuring = threading.Lock()


def fastest(implementations: Mapping[str, Implementation], inputs: Sequence[Tensor], timer: Timer | None = None) -> str:
    """The name of the fastest implementation for such inputs; the first one if it was not and cannot be measured.

    Args:
        implementations: by name. Each takes the inputs and returns one tensor, with gradients for the inputs that need
            them.
        inputs: their values are not used and their gradients not touched.
        timer: measures; None is `gpu_seconds`. With another timer a CPU is measured, too.
    """
    default = next(iter(implementations))
    if len(implementations) == 1 or not _comparable(inputs, anywhere=timer is not None):
        return default
    kind = tuple(implementations), torch.is_grad_enabled(), tuple(_signature(tensor) for tensor in inputs)
    if kind not in _cache:
        if inputs[0].device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return default
        with _measuring:
            if kind not in _cache:
                _cache[kind] = _measure(implementations, inputs, timer or gpu_seconds)
    return _cache[kind]


def clear_cache() -> None:
    """Clear the cache of measurements."""
    _cache.clear()


def gpu_seconds(run: Callable[[], object], device: torch.device, runs: int = 5) -> float:
    """Seconds per run measured by CUDA events, after two runs that compile and warm up."""
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


def _comparable(inputs: Sequence[Tensor], anywhere: bool) -> bool:
    if torch.are_deterministic_algorithms_enabled() or not is_eager(*inputs):
        return False
    return anywhere or inputs[0].device.type == "cuda"


def _signature(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _measure(implementations: Mapping[str, Implementation], inputs: Sequence[Tensor], timer: Timer) -> str:
    """Time all implementations in a thread of its own, where no hook or mode of the caller is active."""
    grad, device = torch.is_grad_enabled(), inputs[0].device
    kind = device.type
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def measure() -> dict[str, float]:
        times, reference = {}, None
        with torch.set_grad_enabled(grad), torch.autocast(kind, enabled=autocast[0], dtype=autocast[1]):
            for name, implementation in implementations.items():
                run = _random_run(implementation, inputs)
                try:
                    seconds, found = timer(run, device), run()
                except torch.OutOfMemoryError:  # whatever fits is faster
                    continue
                except Exception as error:  # a kernel is compiled here for the first time, which needs more than a GPU
                    warnings.warn(f"{name} does not run here and will not be used: {error}", stacklevel=2)
                    continue
                reference = found if reference is None else reference
                if (apart := _difference(found, reference)) > max(SAME[tensor.dtype] for tensor in inputs):
                    warnings.warn(
                        f"{name} does not compute the same here and will not be used (a relative difference of "
                        f"{apart:.1g}); please report it, with your GPU and version of Triton",
                        stacklevel=2,
                    )
                    continue
                times[name] = seconds
        return times

    with ThreadPoolExecutor(1) as thread:
        times = thread.submit(measure).result()
    return min(times, key=lambda name: times[name], default=next(iter(implementations)))


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative L2 difference of two tensors; NaN is infinite."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        difference, size = (float(tensor.double().norm()) for tensor in (ours - theirs, theirs))
        worst = max(worst, difference / max(size, 1e-30) if math.isfinite(difference) else math.inf)
    return worst


def _drawn(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in its place, of a matrix small enough that logits made by it are of order 1."""
    reach = tensor.shape[-1] ** -0.5 if tensor.dim() == 2 else 1.0
    return torch.empty_like(tensor).uniform_(-reach, reach, generator=generator)


def _random_run(implementation: Implementation, inputs: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
    """A function that runs an implementation on random inputs: forward, and backward if an input needs gradients.

    It returns the output and those gradients.
    """
    generator = torch.Generator(inputs[0].device).manual_seed(0)
    drawn = [_drawn(tensor, generator) for tensor in inputs]
    leaves = [ours for ours, theirs in zip(drawn, inputs, strict=True) if theirs.requires_grad]
    for tensor in leaves:
        tensor.requires_grad_()
    if not (leaves and torch.is_grad_enabled()):
        return lambda: (implementation(*drawn),)
    upstream: list[Tensor] = []

    def both() -> Sequence[Tensor]:
        out = implementation(*drawn)
        # In the order of the indices, whatever that of the output in memory is.
        upstream[:] = upstream or [out.new_empty(out.shape).uniform_(-1, 1, generator=generator)]
        return (out.detach(), *torch.autograd.grad(out, leaves, upstream[0]))

    return both
