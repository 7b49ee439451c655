"""Wherever `nn.Conv2d` works, so does the layer, in every form: the rows are what PyTorch offers, the columns what a
layer can be. Each is compared with the plain call, and what a convolution cannot do is not asked for.

Compilers and function transforms are in test_citizenship_transforms.py, many gradients in test_gradient_batches.py.
"""

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from layer_forms import FORMS, REORDERED, TRAINED, Form, every_form, every_trained_form, image
from sampled import crossed
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from tcnn.layers import GPSA2d
from tcnn.layers.fused import FusedGPSA2d

RelativeError = Callable[[Tensor, Tensor], float]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_form
def test_copies_pickles_and_state(form: Form, dtype: torch.dtype) -> None:
    """In float32 a fused layer's matrices lie in the processor's own order, of which neither copy nor file knows."""
    module, x = form().to(dtype).eval(), image().to(dtype)
    expected = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), expected)
        scaled = {name: 2 * value for name, value in twin.state_dict().items()}
        twin.load_state_dict(scaled)
        assert not torch.equal(twin(x), expected)
        twin.load_state_dict(module.state_dict(), assign=True)
        assert torch.equal(twin(x), expected)
    assert torch.equal(module(x), expected)


def fused_step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, fused=True)
    with torch.enable_grad():
        module(image()).square().sum().backward()
    optimizer.step()


WRITES: dict[str, Callable[[nn.Module], object]] = {
    "broadcast": lambda module: [dist.broadcast(p.data.mul_(1.5), 0) for p in module.parameters()],
    "all_reduce": lambda module: [
        (dist.all_reduce(p.detach()), p.detach().numpy().__imul__(1.5)) for p in module.parameters()
    ],
    "moving average by .data": lambda module: [p.data.mul_(0.5).add_(0.7 * p.data) for p in module.parameters()],
    "NumPy view": lambda module: [p.detach().numpy().__imul__(0.8) for p in module.parameters()],
    "shared memory": lambda module: [p.share_memory_().data.mul_(1.3) for p in module.parameters()],
    "fused optimizer": fused_step,
    "foreach": lambda module: torch._foreach_mul_([p.data for p in module.parameters()], 0.9),
    "load_state_dict": lambda module: module.load_state_dict({n: 0.9 * t for n, t in module.state_dict().items()}),
    "load_state_dict, assigned": lambda module: module.load_state_dict(
        {n: 0.9 * t for n, t in module.state_dict().items()}, assign=True
    ),
    "new storage": lambda module: [setattr(p, "data", 1.1 * p.data) for p in module.parameters()],
}


@contextmanager
def one_process() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("name", "way"), crossed(TRAINED, list(WRITES), 4))
def test_nothing_is_stale(name: str, way: str, relative_error: RelativeError) -> None:
    """In eval mode, after every ordinary way to write to parameters: as a fresh layer with these parameters."""
    form, write = FORMS[name], WRITES[way]
    module = form().eval()
    with one_process(), torch.no_grad():
        before = module(image())
        write(module)
        fresh = form().eval()
        fresh.load_state_dict(module.state_dict())
        assert relative_error(module(image()), fresh(image())) < REORDERED
        assert relative_error(module(image()), before) > 1e-3, "the write has an effect"


@every_trained_form
@pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "static graph"])
def test_data_parallel(form: Form, static: bool, relative_error: RelativeError) -> None:
    module, alone = form(), form()
    with one_process():
        wrapped = nn.parallel.DistributedDataParallel(module, static_graph=static)
        for _ in range(2):
            wrapped(image()).square().sum().backward()
            alone(image()).square().sum().backward()
    for (name, found), expected in zip(module.named_parameters(), alone.parameters(), strict=True):
        assert found.grad is not None and expected.grad is not None
        assert torch.allclose(found.grad, expected.grad, rtol=1e-12, atol=1e-14), name


@every_trained_form
def test_fully_sharded(form: Form, relative_error: RelativeError) -> None:
    from torch.distributed.fsdp import fully_shard

    module, alone = form(), form()
    with one_process():
        fully_shard(module, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (module, alone)]
        for _ in range(2):
            for m, optimizer in zip((module, alone), optimizers, strict=True):
                m(image()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            assert relative_error(module.eval()(image()), alone.eval()(image())) < REORDERED


@every_form
def test_empty_batches(form: Form) -> None:
    module, x = form(), image(batch=0).requires_grad_()
    y = module(x)
    assert y.shape == (0, 6, 7, 6)
    if any(p.requires_grad for p in module.parameters()):
        y.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


@every_form
def test_maps_smaller_than_the_kernel(form: Form) -> None:
    """A convolution raises; so does the layer, and what catches the one catches the other."""
    conv = nn.Conv2d(4, 6, 3).double()
    with pytest.raises(RuntimeError):
        conv(image(2, 5))
    unpadded = GPSA2d.from_conv2d(conv, temperature=0.7)
    for module in (unpadded, FusedGPSA2d(unpadded)):
        with pytest.raises(RuntimeError, match=r"^GPSA2d: expected a map of at least 3×3 after padding, got 2×5: "):
            module(image(2, 5))
    with pytest.raises(RuntimeError, match=r"^GPSA2d: expected a map of at least 4×7 after padding, got 3×9: "):
        GPSA2d(4, 6, (2, 3), dilation=3, dtype=torch.float64)(image(3, 9))
    assert form()(image(1, 1)).shape == (2, 6, 1, 1)


@every_trained_form
def test_pruning_and_parametrizations(form: Form, relative_error: RelativeError) -> None:
    module = form()
    prune.l1_unstructured(module, "proj", amount=0.5)
    masked = form()
    with torch.no_grad():
        masked.proj.mul_(module.proj_mask)
    assert relative_error(module(image()), masked(image())) < REORDERED
    prune.remove(module, "proj")
    parametrize.register_parametrization(module, "proj", Doubled())
    with torch.no_grad():
        masked.proj.mul_(2)
    assert relative_error(module(image()), masked(image())) < REORDERED
    module(image()).sum().backward()


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@every_trained_form
def test_tied_weights(form: Form, relative_error: RelativeError) -> None:
    one, two = form(), form()
    two.proj = one.proj
    (one(image()) + two(image())).square().sum().backward()
    alone = form()
    (alone(image()) + alone(image())).square().sum().backward()
    assert one.proj.grad is not None and alone.proj.grad is not None
    assert relative_error(one.proj.grad, alone.proj.grad) < REORDERED


@every_trained_form
def test_hooks(form: Form) -> None:
    module, seen = form(), []
    module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_forward_hook(lambda *_: seen.append("after"))
    module.register_full_backward_hook(lambda *_: seen.append("back"))
    module.proj.register_post_accumulate_grad_hook(lambda _: seen.append("proj"))
    module(image().requires_grad_()).sum().backward()
    assert sorted(seen) == ["after", "back", "before", "proj"]


@every_trained_form
def test_gradients_where_they_are_wanted(form: Form) -> None:
    for name, _ in form().named_parameters():
        module = form().requires_grad_(False)
        module.get_parameter(name).requires_grad_()
        module(image()).sum().backward()
        assert [n for n, p in module.named_parameters() if p.grad is not None] == [name]


@every_trained_form
def test_in_place_operations_behind_it(form: Form, relative_error: RelativeError) -> None:
    """As in vgg, twins or the NF networks: scaling, sums and ReLU write into the layer's output."""
    module, x = form(), image().requires_grad_()
    nn.functional.relu(module(x).mul_(2.0).add_(1.0), inplace=True).square().sum().backward()
    expected = form()
    nn.functional.relu(2 * expected(image()) + 1).square().sum().backward()
    for (name, p), q in zip(module.named_parameters(), expected.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert torch.allclose(p.grad, q.grad, rtol=1e-12, atol=1e-12), name


@every_form
def test_channels_last(form: Form, relative_error: RelativeError) -> None:
    module, x = form(), image(5, 6)
    y = module(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()
    assert relative_error(y, module(x)) < REORDERED
    assert module(x).is_contiguous()


@every_form
def test_autocast(form: Form, relative_error: RelativeError) -> None:
    module, x = form().float(), image().float().requires_grad_()
    expected = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, expected) < 2e-2
    y.float().square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name


@every_form
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_leaves_nothing_behind(form: Form, dtype: torch.dtype, relative_error: RelativeError) -> None:
    """Whatever a call in float64 has prepared goes with the cast."""
    module = form().eval()
    expected = module(image())
    module.to(dtype)
    assert {t.dtype for t in tensors_in(vars(module)) if t.is_floating_point()} == {dtype}
    assert relative_error(module(image().to(dtype)), expected) < 3e-2


def tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


@every_form
def test_precision_settings(form: Form, relative_error: RelativeError) -> None:
    """A layer is as exact as a product of the processor is then: at "medium", one with AMX rounds to bfloat16."""
    before = torch.get_float32_matmul_precision()
    left, right = torch.randn(2, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            of_a_product = relative_error(left.float() @ right.float(), left @ right)
            error = relative_error(form().float()(image().float()), form()(image()))
            assert error < (1e-5 if precision == "highest" else max(1e-5, 4 * of_a_product))
    finally:
        torch.set_float32_matmul_precision(before)
