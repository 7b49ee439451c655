"""A fixed sample of timm's families through the same check as `benchmarks/zoo/sweep.py`: one small member of each.

All but `ALWAYS` are slow.

`tests/slow/test_families_of_larger_models.py` has the families whose smallest member takes seconds.
"""

import pytest
import timm
import torch
from families import assert_verified
from sampled import sampled

import tcnn
from benchmarks.zoo import check as zoo_check
from benchmarks.zoo.check import FAILED, NOT_RUN, REFUSED, VERIFIED, Row, check

SAMPLE = {
    "byobnet": "test_byobnet",
    "convnext": "test_convnext",
    "cspnet": "cs3darknet_focus_s",
    "cspnext": "cspnext_tiny",
    "dla": "dla46x_c",
    "edgenext": "edgenext_xx_small",
    "efficientnet": "test_efficientnet",
    "efficientvim": "efficientvim_m1",
    "efficientvit_mit": "efficientvit_b0",
    "fasternet": "fasternet_t0",
    "ghostnet": "ghostnet_050",
    "hgnet": "hgnetv2_b0",
    "inception_next": "inception_next_atto",
    "lcnetv2": "lcnetv2_small",
    "mambaout": "test_mambaout",
    "maxxvit": "test_maxvit",
    "metaformer": "poolformer_s12",
    "mobilenetv3": "mobilenetv3_small_050",
    "nfnet": "test_nfnet",
    "pvt_v2": "pvt_v2_b0",
    "regnet": "regnetx_002",
    "resnest": "resnest14d",
    "resnet": "test_resnet",
    "resnetv2": "resnetv2_18",
    "senet": "legacy_seresnet18",
    "shvit": "shvit_s1",
    "starnet": "starnet_s1",
    "visformer": "visformer_tiny",
    "vovnet": "ese_vovnet19b_slim_dw",
}

ALWAYS = ("efficientnet",)

REFUSALS = {
    "vit_tiny_patch16_224": "patch_embed.proj: it reads the image itself",
    "swin_tiny_patch4_window7_224": "the only k×k convolutions are patch_embed.proj",
    "mixer_s32_224": "it reads the image itself",
    "tnt_s_patch16_224": "pixel_embed.proj: it reads the image itself",
    "levit_128s": "of stage stages.2); other stages: --stage 0",
    "halonet26t": "of stage final_conv); other stages:",
    "coatnet_nano_rw_224": "of stage stages.3); other stages:",
    "lambda_resnet26t": "Conv3d is not an nn.Conv2d",
    "efficientnet_cc_b0_4e": "CondConv2d is not an nn.Conv2d",
    "naflexvit_base_patch16_gap": "it has none",
    "gemma4_vit_167m": "runs no convolution",
}
QUICKLY_REFUSED = ("mixer_s32_224", "lambda_resnet26t")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("family", "name"),
    sampled(SAMPLE.items(), [(f, SAMPLE[f]) for f in ALWAYS]),
    ids=SAMPLE.values(),
)
def test_family_is_verified(family, name):
    assert_verified(family, name)


@pytest.mark.parametrize(
    ("name", "reason"),
    sampled(REFUSALS.items(), [r for r in REFUSALS.items() if r[0] in QUICKLY_REFUSED]),
    ids=REFUSALS,
)
def test_refusal_has_its_true_reason(name, reason):
    row = check(name)
    assert row.status == REFUSED
    assert reason in row.reason


def test_smallest_image_shows_every_layer_a_map_of_at_least_four_pixels():
    model = timm.create_model("test_resnet").eval()
    plan = zoo_check.plan_for("test_resnet", zoo_check._on_meta("test_resnet"))
    maps = []
    for name in plan.names:
        model.get_submodule(name).register_forward_hook(lambda module, args, output: maps.append(args[0].shape[-2:]))
    with torch.no_grad():
        model(torch.zeros(1, 3, *plan.size))
    assert len(maps) == len(plan.names)
    assert 4 <= min(min(side) for side in maps) < 8


def test_wrong_layer_fails():
    source = timm.create_model("test_resnet").eval()
    converted, report = tcnn.convert(source, input_size=(64, 64))
    with torch.no_grad():
        converted.get_submodule(report.layers[-1].name).proj[0, 0] += 0.01
    verdict = tcnn.verify(source, converted, randomise=True, input_size=(64, 64))
    row = zoo_check._judged(Row("test_resnet", "resnet", VERIFIED), verdict)
    assert row.status == FAILED
    assert "equivalence error" in row.reason


def test_model_over_the_memory_limit_is_not_run():
    row = check("test_resnet", memory=0.1)
    assert row.status == NOT_RUN
    assert "too large" in row.reason
    assert row.error32 == ""
