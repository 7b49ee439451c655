"""How a layer is executed: whether tensors hold values, or a compiler, tracer or function transform is active; in which
dtype, whether under autocast, and differentiated twice.

Under a compiler, a tracer, a transform of `torch.func`, forward-mode differentiation or fake tensors, a layer must
consist of PyTorch operators only: it may neither read a value nor use an operator of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch._C import _TorchDispatchModeKey as _Mode
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_as_real: ContextVar[bool] = ContextVar("fake tensors as real ones", default=False)


@contextmanager
def fake_as_real() -> Iterator[None]:
    """Context in which layers compute fake tensors in the same parts as real ones, to see what memory they take."""
    token = _as_real.set(True)
    try:
        yield
    finally:
        _as_real.reset(token)


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """`is_eager`, or in `fake_as_real` the same of fake tensors, whose values cannot be read."""
    if is_transformed():  # a compiler could not read the variable below, before torch 2.12
        return False
    if is_eager(*tensors):
        return True
    kinds = (Tensor, nn.Parameter, FakeTensor)
    return _as_real.get() and all(isinstance(t, kinds) for t in tensors if t is not None)


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether all of these (None counts as one) are ordinary tensors or parameters and execution is eager.

    Under `FakeTensorMode` nothing is: what is computed of an ordinary parameter is fake there.
    """
    real = not is_transformed() and torch._C._get_dispatch_mode(_Mode.FAKE) is None
    return real and all(type(t) in (Tensor, nn.Parameter) for t in tensors if t is not None)


def needs_gradients(tensors: Iterable[object]) -> bool:
    """Whether autograd will ask for the gradient of one of these."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def is_transformed() -> bool:
    """Whether a compiler, a tracer (`make_fx`, too) or a function transform is active."""
    return bool(
        torch.compiler.is_compiling()
        or is_recorded()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_recorded() -> bool:
    """Whether a program is made of what runs: by `torch.export`, `torch.jit.trace` or `make_fx`."""
    proxied = torch._C._get_dispatch_mode(_Mode.PROXY) or _get_dispatch_mode_pre_dispatch(_Mode.PROXY)
    return bool(is_exporting() or is_jit_tracing() or proxied)


def is_without_values(*tensors: Tensor) -> bool:
    """Whether only shapes are computed: under `FakeTensorMode`, and of tensors on the meta device."""
    return torch._C._get_dispatch_mode(_Mode.FAKE) is not None or any(tensor.is_meta for tensor in tensors)


def is_observed() -> bool:
    """Whether a mode sees every operator, and may keep what it returns, as selective checkpointing does.

    Then nothing may be written into an operator's result. In `fake_as_real` nothing is observed of real tensors.
    """
    return is_in_torch_dispatch_mode() and not _as_real.get()


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` traces, whose programs others convert: OpenVINO misreads or lacks rarer operators."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def is_exporting() -> bool:
    """Whether `torch.export` traces; `torch.compiler.is_exporting` says so of `torch.compile` too in torch 2.11."""
    return bool(torch.compiler._is_exporting_flag)


def holds_for_all(condition: bool) -> bool:
    """Whether a condition on sizes holds for every size that a compiler, tracer or exporter leaves open."""
    if is_exporting() or is_jit_tracing():
        return False
    if not is_transformed():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # here, because it imports sympy

    return statically_known_true(condition)


def at_least_float32(x: Tensor) -> Tensor:
    """Cast half precision to float32, in which softmaxes, gates and distances are computed; other dtypes stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Context in which products have the dtype of their tensors, on a kind of device, whatever autocast is active."""
    # A compiler before torch 2.12 cannot ask whether there is autocast, so of these two nobody does.
    known = device in ("cpu", "cuda") or torch.amp.autocast_mode.is_autocast_available(device)
    active = known and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else nullcontext()


def as_multiplied(x: Tensor) -> Tensor:
    """The dtype that autocast would convert x to in every product, converted once; without autocast x."""
    kind = x.device.type
    if is_transformed() or x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def is_batch_of_gradients(x: Tensor) -> bool:
    """Whether this is several gradients in one, as `torch.autograd.grad` has them with `is_grads_batched`.

    Every operator computes all of them, one by one where it must, but none may write into another tensor.
    """
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.is_legacy_batchedtensor(x))


def differentiated_by_pytorch(gradient: Tensor) -> bool:
    """Whether a backward pass must leave derivatives to PyTorch: for second derivatives, or a batch of gradients."""
    return torch.is_grad_enabled() or is_batch_of_gradients(gradient)


def differentiable_gradients(
    compute: Callable[..., Tensor], tensors: Sequence[Tensor | None], wanted: Sequence[bool], gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of the wanted ones of the tensors that `compute` takes, by PyTorch; else None.

    Themselves differentiable where gradients are enabled, as they are for second derivatives.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # So that one tensor in two places has two gradients.
        places = [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]
        moving = [place for place, moves in zip(places, wanted, strict=True) if moves and place is not None]
        found = iter(torch.autograd.grad(compute(*places), moving, gradient, create_graph=again))
    return [next(found) if moves else None for moves in wanted]
