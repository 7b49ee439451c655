"""Several gradients at once, as `torch.autograd.grad` with `is_grads_batched`, `torch.autograd.functional` with
`vectorize=True` and `gradcheck` ask for them: the same as one by one, by every form, product and kernel.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from forked import Interpreter
from layer_forms import EXPOSED, FORMS, REORDERED, Form, image, layer
from materialised_layers import Case, make, materialised
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from tcnn.layers.backends.selection import use_backend
from tcnn.layers.terms import products
from tcnn.layers.terms.products import batched, linear
from tcnn.layers.triton import attention as triton_attention

RelativeError = Callable[[Tensor, Tensor], float]

MIXED: dict[str, Form] = {
    "hard, content heads": lambda: layer(1 / 46, content_heads=1),
    "quadratic": lambda: layer(0.7, position="quadratic"),
    "relative": lambda: layer(0.7, position="relative"),
    "relative-content": lambda: layer(0.7, position="relative-content"),
}
EVERY = {**FORMS, **EXPOSED, **MIXED}


def both_ways(y: Tensor, leaves: Sequence[Tensor], seeds: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Gradients of y for all seeds at once, and for one after the other."""
    at_once = torch.autograd.grad(y, leaves, seeds, retain_graph=True, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(y, leaves, seed, retain_graph=True) for seed in seeds]
    return at_once, tuple(torch.stack(each) for each in zip(*one_by_one, strict=True))


def largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error relative to all of a gradient, many of which are 0."""
    assert [one.shape for one in found] == [one.shape for one in expected]
    return max(float((a - b).norm() / (b.norm() + 1e-30)) for a, b in zip(found, expected, strict=True) if b.any())


@pytest.mark.parametrize("name", EVERY)
def test_every_form(name: str) -> None:
    """Of the parameters, too; one by one as the formula says, step by step."""
    module, x = EVERY[name](), image(4, 3).requires_grad_()
    leaves = [x, *module.parameters()]
    y = module(x)
    seeds = torch.randn(3, *y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    found, expected = both_ways(y, leaves, seeds)
    assert largest(found, expected) < REORDERED
    with use_backend("reference"):
        exact = torch.autograd.grad(module(x), x, seeds[0])
    assert largest([found[0][0]], exact) < 1e-12


@pytest.mark.parametrize("name", ["soft", "hard, content heads"])
def test_jacobians_hessians_and_gradcheck(name: str, relative_error: RelativeError) -> None:
    module, x = EVERY[name](), image(3, 2, batch=1)

    def loss(x: Tensor) -> Tensor:
        y: Tensor = module(x)
        return y.square().sum()

    assert relative_error(jacobian(module, x, vectorize=True), jacobian(module, x)) < REORDERED
    assert relative_error(hessian(loss, x, vectorize=True), hessian(loss, x)) < REORDERED
    again = jacobian(module, x.requires_grad_(), create_graph=True, vectorize=True)
    assert again.requires_grad
    assert torch.autograd.gradcheck(module, x, check_batched_grad=True)


def test_a_layer_that_leaves_its_graph_alone() -> None:
    """Gradients that nobody differentiates again have no graph of their own."""
    module, x = layer(0.7), image(3, 2).requires_grad_()
    y = module(x)
    (found,) = torch.autograd.grad(y, x, torch.stack([y.detach(), y.detach()]), is_grads_batched=True)
    assert found.grad_fn is None and not found.requires_grad


@pytest.mark.skipif(not products.packable(torch.ones(1)), reason="NOT TESTED: no oneDNN in this PyTorch")
@pytest.mark.parametrize("many", [False, True])
def test_products_of_onednn(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MIN_MULTIPLY_ADDS": 1, "MIN_BESIDE_AVX2": 1}.items():
        monkeypatch.setattr(products, name, value)
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: True)
    monkeypatch.setattr(products, "blas_is_intels_own", lambda: False)
    torch.manual_seed(0)
    shapes = ((3, 11, 24), (3, 24, 10)) if many else ((11, 24), (10, 24), (10,))
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    y = batched(*leaves) if many else linear(*leaves)
    assert ("_Batched" if many else "_Linear") in str(y.grad_fn if many else y.grad_fn.next_functions[0][0])
    found, expected = both_ways(y, leaves, torch.randn(3, *y.shape))
    assert largest(found, expected) < 1e-6


def by_kernels(way: str) -> float:
    """The error of the gradients that are computed at once, by Triton's kernels one by one."""
    module, x = make(Case())
    x.requires_grad_()
    leaves = [x, *module.parameters()]
    if way == "materialised":
        with materialised():
            y = module(x)
    else:
        tensors = [torch.randn(shape) for shape in ((1, 2, 4, 16), (1, 2, 4, 16), (1, 4, 16))]
        tensors += [torch.rand(shape) for shape in ((2, 2, 2), (2, 2, 2), (2,))]
        leaves = [nn.Parameter(tensor) for tensor in tensors]
        y = triton_attention.attend(*leaves, 1, 1.0)
    assert y.grad_fn is not None
    return largest(*both_ways(y, leaves, torch.randn(2, *y.shape)))


@pytest.mark.parametrize("way", ["materialised", "gated"])
def test_kernels(way: str, interpreter: Interpreter) -> None:
    assert interpreter(by_kernels, way) < 1e-5
