"""How W_qry and W_key are drawn."""

import pytest
import torch
from torch import nn

from tcnn.layers import GPSA2d
from tcnn.layers.initialise import mimetic


def test_mimetic_weights_are_the_nearest_of_their_rank() -> None:
    """W_qryᵀ W_key has the largest singular values of 0.7·Z + 0.7·I, and no others (Eckart and Young)."""
    query, key = mimetic(12, 5, torch.Generator().manual_seed(3))
    noise = torch.randn(12, 12, generator=torch.Generator().manual_seed(3)) * 5**-0.5
    wanted = 0.7 * noise + 0.7 * torch.eye(12)
    found = (query.T @ key).double()
    assert torch.linalg.matrix_rank(query.double()) == torch.linalg.matrix_rank(key.double()) == 5
    rest = torch.linalg.svdvals(wanted.double())[5:].norm()
    assert (found - wanted.double()).norm() == pytest.approx(rest.item(), rel=1e-5)


def test_wide_heads_give_the_product_itself() -> None:
    query, key = mimetic(4, 6, torch.Generator().manual_seed(1))
    noise = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) * 6**-0.5
    assert query.shape == key.shape == (6, 4)
    torch.testing.assert_close(query.T @ key, 0.7 * noise + 0.7 * torch.eye(4), atol=1e-5, rtol=0)


def test_pixels_look_for_their_like() -> None:
    """A query's own pixel gets more content attention than others, by far more than with small normal weights."""

    def share(kind: str) -> float:
        torch.manual_seed(0)
        layer = GPSA2d.from_conv2d(
            nn.Conv2d(32, 8, 3), head_dim=32, content_heads=4, query_key=kind,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        content = layer.attention(torch.randn(2, 32, 5, 5)).content
        own = torch.tensor([6, 7, 8, 11, 12, 13, 16, 17, 18])  # the nine queries' own pixels of the unpadded map
        return content[:, :, torch.arange(9), own].mean().item()

    assert share("normal") == pytest.approx(1 / 25, rel=0.05)
    assert share("mimetic") > 0.5


@pytest.mark.parametrize("kind", ["normal", "mimetic"])
def test_a_seed_means_the_same_weights(kind: str) -> None:
    def layer() -> GPSA2d:
        generator = torch.Generator().manual_seed(7)
        return GPSA2d.from_conv2d(nn.Conv2d(8, 8, 3), content_heads=2, query_key=kind, generator=generator)  # type: ignore[arg-type]

    conv = nn.Conv2d(8, 8, 3, padding=1)
    first, second = layer(), layer()
    assert torch.equal(first.query, second.query) and torch.equal(first.key, second.key)
    x = torch.randn(2, 8, 5, 4)
    assert torch.equal(GPSA2d.from_conv2d(conv, content_heads=2, query_key=kind)(x), conv(x))  # type: ignore[arg-type]
