"""oneDNN multiplies as PyTorch does, gradients and all; where it is not to be had, plain products are taken."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.terms import products
from tcnn.layers.terms.products import Packed, batched, batched_into, linear, pack

RelativeError = Callable[[Tensor, Tensor], float]

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # of forward gradients and of tracing

FLOAT32 = 1e-6
"""Relative L2 of sums of up to 4,608 terms in float32. Measured: 4e-7."""

# Not by `packable`, which is tested here: if that were wrong, nothing would be.
has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_onednn = pytest.mark.skipif(not has_onednn, reason="NOT TESTED: no oneDNN in this PyTorch")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 3, 5), (7, 4608, 64), (49, 17, 512), (200, 504, 33)])
def test_the_product_is_the_plain_one(
    rows: int, inputs: int, outputs: int, bias: bool, relative_error: RelativeError
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, offset = (torch.randn(*shape, generator=generator) for shape in ((outputs, inputs), (outputs,)))
    expected = torch.randn(2, rows, inputs, generator=generator)
    for x in (expected, expected.transpose(0, 1).contiguous().transpose(0, 1), expected[:, :0]):
        matrix = pack(weight)
        assert isinstance(matrix, Packed)
        assert matrix.shape == weight.shape
        found = linear(x, matrix, offset if bias else None)
        exact = x.double() @ weight.double().T + (offset.double() if bias else 0)
        assert found.shape == exact.shape
        assert found.numel() == 0 or relative_error(found, exact) < FLOAT32


@needs_onednn
def test_what_is_packed_can_be_copied() -> None:
    """In memory and by pickle, as models are."""
    packed = pack(drawn(3, 5))
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert isinstance(twin, Packed) and twin.shape == (3, 5)
        assert torch.equal(twin.weight, drawn(3, 5))


@needs_onednn
def test_a_strided_weight(relative_error: RelativeError) -> None:
    weight, x = torch.randn(6, 8).T, torch.randn(5, 6)
    assert relative_error(linear(x, pack(weight)), x @ weight.T) < FLOAT32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_numbers_stay_as_they_are(dtype: torch.dtype) -> None:
    weight = torch.ones(2, 2, dtype=dtype)
    assert pack(weight) is weight
    assert pack(torch.ones(2, 2, device="meta")).device.type == "meta"  # type: ignore[union-attr]


@torch.no_grad()
def test_a_layer_without_onednn(relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = GPSA2d(16, 24, 3, padding=1, temperature=1.0).eval(), torch.randn(2, 16, 6, 7)
    with use_backend("reference"):
        expected = layer(x)
    found = [layer(x)]
    layer.train().eval()
    monkeypatch.setattr(products, "_operators", object)
    found.append(layer(x))
    assert all(relative_error(y, expected) < FLOAT32 for y in found)


@torch.no_grad()
def test_the_bias_is_todays(relative_error: RelativeError) -> None:
    """It is not packed, so it may change without the matrices being packed anew."""
    layer, x = GPSA2d(8, 4, 3, padding=1, temperature=1.0).eval(), torch.randn(1, 8, 5, 5)
    assert layer.bias is not None
    before = layer(x)
    layer.bias.add_(1.0)
    assert relative_error(layer(x), before + 1) < FLOAT32


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products, too, are oneDNN's, and those of many matrices."""
    monkeypatch.setattr(products, "MIN_MULTIPLY_ADDS", 1)
    monkeypatch.setattr(products, "MIN_BESIDE_AVX2", 1)
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: True)
    monkeypatch.setattr(products, "blas_is_intels_own", lambda: False)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


INPUTS = {
    "rows": lambda: drawn(11, 24),
    "images": lambda: drawn(3, 7, 24),
    "one": lambda: drawn(24)[None],
    "map": lambda: drawn(2, 24, 9).transpose(1, 2),
    "every other": lambda: drawn(14, 24)[::2],
    "the same": lambda: drawn(24).expand(9, 24),
}
WEIGHTS = {
    "as it is": lambda: drawn(10, 24),
    "transposed": lambda: drawn(24, 10).t(),
    "a part": lambda: drawn(10, 48)[:, 5:29],
    "every other": lambda: drawn(20, 24)[::2],
}


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("x", INPUTS)
def test_however_it_lies_the_product_and_its_gradients(
    x: str, weight: str, bias: bool, relative_error: RelativeError
) -> None:
    given = [INPUTS[x](), WEIGHTS[weight](), drawn(10) if bias else None]
    ours = [None if tensor is None else tensor.detach().requires_grad_() for tensor in given]
    exact = [None if tensor is None else tensor.double().requires_grad_() for tensor in given]
    found, expected = linear(*ours), torch.nn.functional.linear(*exact)  # type: ignore[arg-type]
    assert found.grad_fn is not None and "_Linear" in str(found.grad_fn.next_functions[0][0] or found.grad_fn)
    assert found.shape == expected.shape and relative_error(found, expected) < FLOAT32
    for seed in (drawn(*found.shape), torch.ones(()).expand_as(found)):  # what a sum sends back is one number
        leaves = [tensor for tensor in ours if tensor is not None]
        wanted = [tensor for tensor in exact if tensor is not None]
        gradients = torch.autograd.grad(found, leaves, seed, retain_graph=True)
        references = torch.autograd.grad(expected, wanted, seed.double(), retain_graph=True)
        for gradient, reference in zip(gradients, references, strict=True):
            assert gradient.shape == reference.shape and relative_error(gradient, reference) < FLOAT32


MANY = {
    "as they are": lambda: drawn(3, 11, 24),
    "transposed": lambda: drawn(3, 24, 11).transpose(1, 2),
    "a part": lambda: drawn(3, 11, 48)[..., 5:29],
    "every other": lambda: drawn(6, 22, 24)[::2, ::2],
    "the same": lambda: drawn(11, 24).expand(3, 11, 24),
    "none": lambda: drawn(0, 11, 24),
}


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("b", MANY)
@pytest.mark.parametrize("a", MANY)
def test_many_products_and_their_gradients(a: str, b: str, relative_error: RelativeError) -> None:
    given = MANY[a](), MANY[b]().transpose(1, 2)
    if len({len(one) for one in given}) == 2:
        return
    ours, exact = ([one.to(dtype).detach().requires_grad_() for one in given] for dtype in (None, torch.float64))
    found, expected = batched(*ours), torch.bmm(*exact)
    assert "_Batched" in str(found.grad_fn) and found.shape == expected.shape
    first, wanted = (
        torch.autograd.grad(y.tanh().square().sum(), leaves, create_graph=True)
        for y, leaves in ((found, ours), (expected, exact))
    )
    second, further = (
        torch.autograd.grad(sum(one.square().sum() for one in gradients), leaves)
        for gradients, leaves in ((first, ours), (wanted, exact))
    )
    for one, reference in zip((found, *first, *second), (expected, *wanted, *further), strict=True):
        assert one.shape == reference.shape
        assert not one.numel() or relative_error(one, reference) < 1e-5


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
def test_many_products_written_where_they_belong(
    add: bool, onednn: bool, relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: onednn)
    a, b, total = drawn(3, 5, 24), drawn(3, 24, 7), drawn(4, 5, 7)
    expected = torch.bmm(a.double(), b.double()) + (total[1:].double() if add else 0)
    before = total[0].clone()
    batched_into(total[1:], a, b, add)
    assert relative_error(total[1:], expected) < FLOAT32 and torch.equal(total[0], before)


@needs_onednn
def test_many_products_are_pytorchs_beside_a_blas_that_uses_all_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "MIN_BESIDE_AVX2", 2**20)
    many = torch.ones(1, 2**10, 2**10), torch.ones(1, 2**10, 2**10).requires_grad_()
    for slow in (False, True):
        monkeypatch.setattr(products, "blas_lacks_avx512", lambda slow=slow: slow)
        assert ("_Batched" in str(batched(*many).grad_fn)) == slow
        assert "_Batched" not in str(batched(*(one.double() for one in many)).grad_fn)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert batched(*many).dtype == torch.bfloat16
        assert torch.equal(torch.vmap(batched)(*(one[None] for one in many))[0], batched(*many))


@needs_onednn
@pytest.mark.usefixtures("always")
def test_products_are_pytorchs_where_it_takes_onednn_for_them(relative_error: RelativeError) -> None:
    x, weight, many = drawn(4, 24).requires_grad_(), drawn(10, 24), (drawn(3, 5, 24).requires_grad_(), drawn(3, 24, 7))
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    bits = 1e-2 if capabilities.get("amx_bf16") else FLOAT32  # the setting allows it bfloat16
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            pytorchs = precision == "medium" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
            assert products.pytorch_takes_onednn() == pytorchs
            assert ("_Linear" in str(linear(x, weight).grad_fn.next_functions[0][0])) != pytorchs  # type: ignore[union-attr]
            assert ("_Batched" in str(batched(*many).grad_fn)) != pytorchs
            assert relative_error(linear(x, weight), x.double() @ weight.double().T) < bits
            assert relative_error(batched(*many), many[0].double() @ many[1].double()) < bits
    finally:
        torch.set_float32_matmul_precision(before)


@needs_onednn
@pytest.mark.usefixtures("always")
def test_gradients_of_gradients_and_forward_ones(relative_error: RelativeError) -> None:
    x, weight, bias = drawn(5, 24), drawn(10, 24), drawn(10)

    def curved(multiply: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias)]
        first = torch.autograd.grad(multiply(*leaves).tanh().square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
        with torch.autograd.forward_ad.dual_level():
            dual = [torch.autograd.forward_ad.make_dual(leaf.detach(), leaf.detach().cos()) for leaf in leaves]
            tangent = torch.autograd.forward_ad.unpack_dual(multiply(*dual)).tangent
            assert tangent is not None
        return [*first, *second, tangent]

    found, expected = curved(linear, torch.float32), curved(torch.nn.functional.linear, torch.float64)
    for ours, exact in zip(found, expected, strict=True):
        assert relative_error(ours, exact) < 1e-5


@needs_onednn
@pytest.mark.usefixtures("always")
def test_what_looks_at_the_operations_sees_pytorchs_own(relative_error: RelativeError) -> None:
    x, weight = drawn(4, 5, 24), drawn(10, 24)
    expected = torch.nn.functional.linear(x, weight)
    assert relative_error(torch.vmap(linear, (0, None))(x, weight), expected) < FLOAT32
    each = torch.func.vmap(torch.func.grad(lambda w, one: linear(one, w).square().sum()), (None, 0))(weight, x)
    for gradient, one in zip(each, x, strict=True):
        assert relative_error(gradient, 2 * (one @ weight.T).T @ one) < FLOAT32
    traced = torch.jit.trace(lambda one: linear(one, weight), x)
    assert "aten::linear" in str(traced.graph)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        linear(x, weight), linear(x, pack(weight))
    assert counter.get_total_flops() == 2 * (2 * 4 * 5 * 24 * 10)


@needs_onednn
def test_small_products_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = drawn(4, 24).requires_grad_(), drawn(10, 24)
    assert "_Linear" not in str(linear(x, weight).grad_fn)
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: False)
    monkeypatch.setattr(products, "blas_is_intels_own", lambda: False)
    large = torch.ones(products.MIN_MULTIPLY_ADDS // 2**14, 2**6).requires_grad_()
    assert "_Linear" in str(linear(large, torch.ones(2**8, 2**6)).grad_fn.next_functions[0][0])  # type: ignore[union-attr]


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("options", [{}, {"stride": 2, "kernel_size": 2, "padding": 0}, {"content": "window:3"}])
def test_a_layer_learns_the_same(options: dict[str, object], relative_error: RelativeError) -> None:
    torch.manual_seed(0)
    layer = GPSA2d(12, 10, **{"kernel_size": 3, "padding": 1, "temperature": 1.0, **options})  # type: ignore[arg-type]
    x = drawn(2, 12, 6, 7)

    def learned(layer: GPSA2d, x: Tensor, way: str) -> list[Tensor]:
        leaf = x.requires_grad_()
        with use_backend(way):  # type: ignore[arg-type]
            y = layer(leaf)
        return [y, *torch.autograd.grad(y.sin().sum(), [leaf, *layer.parameters()])]

    found = learned(layer, x, "dense")
    expected = learned(layer.double(), x.detach().double(), "reference")
    for ours, exact in zip(found, expected, strict=True):
        assert relative_error(ours, exact) < 1e-5
