"""What traces, transforms or compiles modules takes the layer in every form, and computes what the plain call computes.

Graphs for all sizes are also asked for in test_gpsa_compile.py and test_scope_layer.py.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from layer_forms import FORMS, REORDERED, Form, every_form, every_trained_form, image, parametrized
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tcnn.layers import GPSA2d

RelativeError = Callable[[Tensor, Tensor], float]

most_forms = parametrized(FORMS, slow=["fused hard", "fused window"])
"""Fused layers are the others with one product made in advance: those two differ from `fused` as the others do."""
few_forms = parametrized(FORMS, slow=["fused hard", "fused window", "fused", "pooled", "window"])
"""Attention, a convolution, and both in one."""
QUICKLY_MADE = {("hard", "real"), ("folded", "real")}
"""Forms and modes of `make_fx` that are not slow."""


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


@every_form
def test_the_meta_device(form: Form) -> None:
    module = form().to("meta")
    assert module(image().to("meta")).shape == (2, 6, 7, 6)


@few_forms
def test_nothing_poisons_the_process(form: Form) -> None:
    """What runs on the meta device, or on fake tensors, leaves nothing behind for real layers of the same geometry."""
    module, x = form(), image(5, 9)
    with torch.device("meta"):
        assert module(x).device.type == "cpu"
    expected = module(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        state = {name: mode.from_tensor(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
        assert functional_call(module, state, (mode.from_tensor(x),)).shape == (2, 6, 5, 9)
        assert module(mode.from_tensor(x)).shape == (2, 6, 5, 9), "real parameters, of which operators compute fakes"
    form().to("meta")(x.to("meta"))
    assert torch.equal(module(x), expected)
    assert torch.equal(form()(x), expected)


@most_forms
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


@most_forms
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
    last = vmap(grad(loss), in_dims=(None, 0))(parameters_of(module), x.to(memory_format=torch.channels_last)[:, None])
    assert relative_error(last["proj"], each["proj"]) < REORDERED, "a map whose memory format cannot be asked for"
    many = {name: torch.stack([p, 2 * p]) for name, p in parameters_of(module).items()}
    values = vmap(loss, in_dims=(0, None))(many, x)
    assert torch.allclose(vmap(loss, in_dims=(0, None))(many, x.to(memory_format=torch.channels_last)), values)
    assert values[0].item() == pytest.approx(module(x).square().sum().item(), rel=1e-12)


@most_forms
def test_second_derivatives(form: Form) -> None:
    module = form()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.autograd.gradgradcheck(module, image(3, 2, batch=1).requires_grad_(), fast_mode=True)


@every_trained_form
def test_selective_checkpoints(form: Form) -> None:
    """Results of products are kept as they were returned, and nothing is written into them."""
    aten = torch.ops.aten
    products = [aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default]
    contexts = partial(create_selective_checkpoint_contexts, products)
    module, x = form(), image()
    module(x).square().sum().backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    checkpoint(module, x, use_reentrant=False, context_fn=contexts).square().sum().backward()
    torch.testing.assert_close({name: p.grad for name, p in module.named_parameters()}, expected)


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


@few_forms
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_tracing(form: Form, relative_error: RelativeError) -> None:
    """PyTorch's own check of the trace runs, and raises where the trace differs from the layer."""
    module = form().eval()
    traced = torch.jit.trace(module, image())
    assert relative_error(traced(image().flip(0)), module(image().flip(0))) < REORDERED


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_tracing_of_a_stride_beyond_the_kernel(relative_error: RelativeError) -> None:
    """Whose SAME padding a tracer computes in tensors, and must not let fall below 0."""
    module = GPSA2d(4, 6, (1, 3), 2, "dynamic", temperature=0.7, dtype=torch.float64).eval()
    assert relative_error(torch.jit.trace(module, image())(image().flip(0)), module(image().flip(0))) < REORDERED


@parametrized(FORMS, slow=["soft", "hard", "pooled", "fused window", "window", "fused", "fused hard", "folded"])
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


@parametrized(FORMS, slow=["soft", "window", "pooled", "hard", "fused", "fused window", "fused hard", "folded"])
def test_one_graph_for_all_sizes(form: Form, relative_error: RelativeError) -> None:
    torch.compiler.reset()
    module = form().eval()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for x in (image(), image(9, 8), image(4, 5, batch=3)):
        assert relative_error(compiled(x), module(x)) < REORDERED
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("form", "mode"),
    [
        pytest.param(
            FORMS[name], mode, id=f"{name}-{mode}", marks=() if (name, mode) in QUICKLY_MADE else pytest.mark.slow
        )
        for name in FORMS
        for mode in ("real", "fake", "symbolic")
    ],
)  # fmt: skip
def test_make_fx(form: Form, mode: Literal["real", "fake", "symbolic"], relative_error: RelativeError) -> None:
    """Parameters that need gradients, as a convolution's may: those of a layer are constants of the graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module = form().eval()
    traced = make_fx(module, tracing_mode=mode, _allow_non_fake_inputs=True)(image())
    assert relative_error(traced(image().flip(0)), module(image().flip(0))) < REORDERED
