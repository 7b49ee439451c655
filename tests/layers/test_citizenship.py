"""Wherever `nn.Conv2d` works, so does the layer, in every form: the rows are what PyTorch offers, the columns what a
layer can be. Each is compared with the plain call, and what a convolution cannot do is not asked for.
"""

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrize, prune

import tcnn
from tcnn.errors import RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d

RelativeError = Callable[[Tensor, Tensor], float]
Form = Callable[[], nn.Module]

REORDERED = 1e-13
"""Relative L2 in float64 where only the order of operations may differ. Measured: at most 2e-15."""


def layer(temperature: float, **options: object) -> GPSA2d:
    """A layer with matrices as after training, float64."""
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1).double()
    made = GPSA2d.from_conv2d(conv, temperature=temperature, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(made, name).add_(0.3 * torch.randn_like(getattr(made, name)))
        if temperature > 0.1:
            for name in ("gating_param", "locality_raw", "attention_centers"):
                getattr(made, name).add_(0.3 * torch.randn_like(getattr(made, name)))
    return made


def folded() -> nn.Module:
    kinds = ["convolution", "content", "attention"] * 3
    return FoldedGPSA2d.from_gpsa2d(layer(0.7), kinds, [h if k == "convolution" else None for h, k in enumerate(kinds)])  # type: ignore[arg-type]


def fused(temperature: float, **options: object) -> nn.Module:
    return FusedGPSA2d(layer(temperature, **options))


FORMS: dict[str, Form] = {
    "hard": lambda: layer(1 / 46),
    "soft": lambda: layer(0.7),
    "window": lambda: layer(0.7, content="window:3"),
    "pooled": lambda: layer(0.7, content="pooled:2"),
    "folded": folded,
    "fused": lambda: fused(0.7),
    "fused hard": lambda: fused(1 / 46),
    "fused window": lambda: fused(0.7, content="window:3"),
}
TRAINED = [name for name in FORMS if not name.startswith("fused")]
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
every_trained_form = pytest.mark.parametrize("form", [FORMS[n] for n in TRAINED], ids=TRAINED)


def image(*size: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 4, *(size or (7, 6)), dtype=torch.float64, generator=generator)


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


@every_form
def test_the_meta_device(form: Form) -> None:
    module = form().to("meta")
    assert module(image().to("meta")).shape == (2, 6, 7, 6)


@every_form
def test_nothing_poisons_the_process(form: Form) -> None:
    """What runs on the meta device, or on fake tensors, leaves nothing behind for real layers of the same geometry."""
    module, x = form(), image(5, 9)
    with torch.device("meta"):
        assert module(x).device.type == "cpu"
    expected = module(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        state = {name: mode.from_tensor(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
        assert functional_call(module, state, (mode.from_tensor(x),)).shape == (2, 6, 5, 9)
    form().to("meta")(x.to("meta"))
    assert torch.equal(module(x), expected)
    assert torch.equal(form()(x), expected)


@every_form
def test_forward_mode(form: Form, relative_error: RelativeError) -> None:
    """Also in eval mode and without gradients, where a tangent must not be lost: against a difference quotient."""
    module, x, direction = form().eval(), image(), image(7, 6).flip(0)
    h = 1e-6
    with torch.no_grad():
        quotient = (module(x + h * direction) - module(x - h * direction)) / (2 * h)
        _, tangent = jvp(module, (x,), (direction,))
        with torch.autograd.forward_ad.dual_level():
            dual = module(torch.autograd.forward_ad.make_dual(x, direction))
            plain = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert relative_error(tangent, quotient) < 1e-7
    assert relative_error(plain, tangent) < REORDERED


@every_trained_form
def test_jacobians_of_parameters(form: Form, relative_error: RelativeError) -> None:
    module, x = form(), image(3, 4, batch=1)

    def of_bias(bias: Tensor) -> Tensor:
        y: Tensor = functional_call(module, {"bias": bias}, (x,))
        return y

    assert module.bias is not None
    forward, backward = (jac(of_bias)(module.bias.detach()) for jac in (torch.func.jacfwd, torch.func.jacrev))  # type: ignore[arg-type]
    assert relative_error(forward, backward) < REORDERED


@every_form
def test_vmap_over_inputs(form: Form, relative_error: RelativeError) -> None:
    module, many = form().eval(), torch.stack([image(), 2 * image()])
    assert relative_error(vmap(module)(many), torch.stack([module(x) for x in many])) < REORDERED
    assert relative_error(vmap(module)(image()), module(image())) < REORDERED, "images without a batch"


@every_trained_form
def test_gradients_by_functions(form: Form, relative_error: RelativeError) -> None:
    """`torch.func.grad` of the parameters, per sample, and an ensemble of layers."""
    module, x = form(), image()

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = functional_call(module, parameters, (x,))
        return y.square().sum()

    found = grad(loss)(parameters_of(module), x)
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        if parameter.grad.any():
            assert relative_error(found[name], parameter.grad) < REORDERED, name
        else:
            assert found[name].abs().max() < REORDERED, name
    each = vmap(grad(loss), in_dims=(None, 0))(parameters_of(module), x[:, None])
    assert relative_error(each["proj"].sum(0), found["proj"]) < REORDERED
    many = {name: torch.stack([p, 2 * p]) for name, p in parameters_of(module).items()}
    values = vmap(loss, in_dims=(0, None))(many, x)
    assert values[0].item() == pytest.approx(module(x).square().sum().item(), rel=1e-12)


@every_form
def test_symbolic_tracing(form: Form, relative_error: RelativeError) -> None:
    model = nn.Sequential(form(), nn.ReLU()).eval()
    traced = torch.fx.symbolic_trace(model)
    for x in (image(), image(4, 9)):
        assert relative_error(traced(x), model(x)) < REORDERED
    if any(True for _ in model.parameters()):
        traced.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()}, strict=False)
        model.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()})
        assert relative_error(traced(image()), model(image())) < REORDERED, "it reads its parameters in every call"


@every_form
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_tracing(form: Form, relative_error: RelativeError) -> None:
    """PyTorch's own check of the trace runs, and raises where the trace differs from the layer."""
    module = form().eval()
    traced = torch.jit.trace(module, image())
    assert relative_error(traced(image().flip(0)), module(image().flip(0))) < REORDERED


@every_form
def test_export_with_dynamic_sizes(form: Form, relative_error: RelativeError) -> None:
    """Any batch, and any map but for windows, whose number depends on it (docs/export.md)."""
    module, dim = form().eval(), torch.export.Dim
    shapes = {0: dim("batch", min=1, max=64)}
    windows = module.scope.kind == "window"
    if not windows:
        shapes |= {2: dim("height", min=3, max=64), 3: dim("width", min=3, max=64)}
    program = torch.export.export(module, (image(9, 8),), dynamic_shapes=(shapes,)).module()
    for x in (image(9, 8, batch=5),) if windows else (image(), image(10, 6, batch=3)):
        assert relative_error(program(x), module(x)) < REORDERED


@every_form
def test_one_graph_for_all_sizes(form: Form, relative_error: RelativeError) -> None:
    torch.compiler.reset()
    module = form().eval()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for x in (image(), image(9, 8), image(4, 5, batch=3)):
        assert relative_error(compiled(x), module(x)) < REORDERED
    torch.compiler.reset()


@every_form
def test_make_fx(form: Form, relative_error: RelativeError) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = form().eval().requires_grad_(False)
    traced = make_fx(module)(image())
    assert relative_error(traced(image().flip(0)), module(image().flip(0))) < REORDERED


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


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@every_trained_form
def test_nothing_is_stale(form: Form, write: Callable[[nn.Module], object], relative_error: RelativeError) -> None:
    """In eval mode, after every ordinary way to write to parameters: as a fresh layer with these parameters."""
    module = form().eval()
    with one_process(), torch.no_grad():
        before = module(image())
        write(module)
        fresh = form().eval()
        fresh.load_state_dict(module.state_dict())
        assert relative_error(module(image()), fresh(image())) < REORDERED
        assert relative_error(module(image()), before) > 1e-3, "the write has an effect"


@every_trained_form
@pytest.mark.parametrize("static", [False, True], ids=["", "static graph"])
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
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            assert relative_error(form().float()(image().float()), form()(image())) < 1e-5
    finally:
        torch.set_float32_matmul_precision(before)


@every_form
def test_second_derivatives(form: Form) -> None:
    module = form()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.autograd.gradgradcheck(module, image(3, 2, batch=1).requires_grad_())


def test_a_fused_model_says_so_and_refuses_training() -> None:
    model = nn.Sequential(layer(0.7), nn.BatchNorm2d(6).double(), nn.ReLU())
    x = image()
    found = tcnn.fuse(model)
    assert "for inference only" in repr(found)
    assert not any(name.startswith("0.") for name, _ in found.named_parameters())
    assert torch.allclose(found(x), model.eval()(x), rtol=1e-12, atol=1e-12)
    with pytest.raises(RequestError, match=r"^FusedGPSA2d: fused for inference; train the model that was fused$"):
        found.train()
    with pytest.raises(
        RequestError, match=r"^0: was fused, for inference only; fuse the model that it was fused from$"
    ):
        tcnn.fuse(found)
    with pytest.raises(RequestError, match="expected a model with GPSA layers, found none"):
        tcnn.fuse(nn.Conv2d(3, 3, 3))
    with torch.no_grad():
        model[0].proj.zero_()
    assert found(x).abs().sum() > 1, "a copy: the model may train on"


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"groups": 2}, {"padding_mode": "reflect"}, {"content": "window:9"}, {"content": "pooled:3"}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fused_layers_of_every_geometry(
    options: dict[str, object], dtype: torch.dtype, relative_error: RelativeError
) -> None:
    """Float32 takes the processor's own order of the matrices, whatever their size."""
    torch.manual_seed(0)
    for temperature in (1 / 46, 0.7):
        made = GPSA2d(4, 6, 3, padding=1, temperature=temperature, **options).to(dtype)  # type: ignore[arg-type]
        with torch.no_grad():
            made.value.add_(0.3 * torch.randn_like(made.value))
        found = FusedGPSA2d(made)
        tolerance = 1e-6 if dtype == torch.float32 else REORDERED
        for x in (image(), image(9, 5), image(6, 6, batch=1), image()):
            with torch.no_grad():
                assert relative_error(found(x.to(dtype)), made(x.to(dtype))) < tolerance


@pytest.mark.parametrize("form", ["fused", "fused window"])
def test_gradients_of_the_input_after_inference_mode(form: str, relative_error: RelativeError) -> None:
    """What is kept in inference mode is no inference tensor, which autograd would refuse."""
    module, x = FORMS[form](), image().requires_grad_()
    with torch.inference_mode():
        module(image())
    module(x).square().sum().backward()
    found = x.grad
    again = image().requires_grad_()
    FORMS[form]()(again).square().sum().backward()
    assert found is not None and again.grad is not None
    assert relative_error(found, again.grad) < REORDERED
