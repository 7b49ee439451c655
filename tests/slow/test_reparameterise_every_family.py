"""Every family of timm's with blocks that merge for inference: its converted model merges too, where it can."""

import copy
from collections.abc import Callable

import pytest
import torch
from timm.models import reparameterize_model
from torch import nn

import tcnn
from tcnn.layers.base import AttentionLayer

FAMILIES = {
    "byobnet": "mobileone_s0",
    "efficientvim": "efficientvim_m1",
    "efficientvit_msra": "efficientvit_m0",
    "fastvit": "fastvit_t8",
    "ghostnet": "ghostnetv3_050",
    "iformer": "iformer_t",
    "lcnetv2": "lcnetv2_small",
    "nextvit": "nextvit_small",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "shvit": "shvit_s1",
    "tiny_vit": "tiny_vit_5m_224",
}


@pytest.mark.parametrize("name", FAMILIES.values())
@torch.no_grad()
def test_it_merges_and_computes_the_same(name: str, lively: Callable[..., nn.Module]) -> None:
    source = lively(name)
    model = tcnn.convert(source).model.eval()
    x = torch.randn(1, *source.pretrained_cfg["input_size"])
    expected = copy.deepcopy(model)(x)
    merged = reparameterize_model(model)
    found = merged(x)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    layers = [isinstance(module, AttentionLayer) for module in merged.modules()]
    assert sum(layers) == len(model.conversion_report.layers)
    before = sum(1 for _ in model.modules())
    fewer = sum(1 for _ in source.modules()) - sum(1 for _ in reparameterize_model(source).modules())
    assert len(layers) < before if fewer else len(layers) == before
