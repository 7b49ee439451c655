"""The check and the runner of `benchmarks/zoo/sweep.py`: a fixed sample of timm's families, one small member of each;
shards, resumption, limits, and the page that it writes.

All but `ALWAYS` are slow.
"""

import csv
import json
from pathlib import Path

import pytest
import timm
import torch
from forked import processes
from sampled import sampled

import tcnn
from benchmarks.zoo import check as zoo_check
from benchmarks.zoo import sweep as zoo
from benchmarks.zoo.check import FAILED, NOT_RUN, REFUSED, VERIFIED, Row, check
from benchmarks.zoo.summary import summarise

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
    # The smallest of these take seconds.
    "davit": "davit_tiny",
    "fastvit": "fastvit_t8",
    "iformer": "iformer_t",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "rexnet": "rexnet_100",
    "sknet": "skresnet18",
    "swiftformer": "swiftformer_l1",
    "tiny_vit": "tiny_vit_5m_224",
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


def assert_verified(family: str, name: str) -> None:
    """It converts, and computes what it did."""
    row = check(name)
    assert (row.family, row.status, row.reason) == (family, VERIFIED, "")
    assert float(row.error32) <= 1e-5 and float(row.layer32) <= 1e-5
    assert float(row.error64) <= 1e-10 and float(row.layer64) <= 1e-10
    # Far above the errors: the logits do notice what the converted layers do.
    assert float(row.drift) > 1e-4
    assert int(row.layers) >= 1 and int(row.parameters_after) > int(row.parameters_before)


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


@pytest.fixture
def started_at_once(monkeypatch):
    """Children are forked from a process that has torch loaded, where the benchmark has fresh ones."""
    monkeypatch.setattr(zoo.multiprocessing, "get_context", lambda kind: processes)


@pytest.mark.usefixtures("started_at_once")
def test_child_that_overruns_its_time_is_not_run(tmp_path):
    options = _options(tmp_path, "test_resnet", timeout=0.001)
    zoo.run(options)
    row = zoo.read(options.csv)["test_resnet"]
    assert row.status == NOT_RUN
    assert "not done after" in row.reason


@pytest.mark.usefixtures("started_at_once")
def test_run_writes_rows_and_resumes(tmp_path):
    options = _options(tmp_path, "test_vit[23]", timeout=300.0)
    names = zoo.pending(options)
    assert set(names) == set(timm.list_models("test_vit[23]"))
    halves = [zoo.pending(_options(tmp_path, "test_vit[23]", shard=f"{i}/2")) for i in (1, 2)]
    assert sorted([*halves[0], *halves[1]]) == sorted(names)
    zoo.run(_options(tmp_path, "test_vit[23]", shard="1/2"))
    assert zoo.pending(options) == halves[1]
    zoo.run(options)
    assert zoo.pending(options) == []
    assert zoo.pending(_options(tmp_path, "test_vit[23]", redo="failed")) == []
    assert set(zoo.pending(_options(tmp_path, "test_vit[23]", redo=REFUSED))) == set(names)
    with options.csv.open(newline="", encoding="utf-8") as file:
        assert [line["status"] for line in csv.DictReader(file)] == [REFUSED] * len(names)


def _options(folder: Path, only: str, shard: str = "1/1", redo: str = "", timeout: float = 300.0):
    arguments = ["--csv", str(folder / "zoo.csv"), "--only", only, "--shard", shard, "--redo", redo]
    return zoo.parse([*arguments, "--timeout", str(timeout)])


def test_summary_counts_and_names_everything(tmp_path):
    verified = Row(
        "a_net", "nets", VERIFIED, "", 2, "3×3 7×7", 9, "64×64", 10, 20, "1.0e-07", "1.0e-16", "2.0e-07", "2.0e-16",
        "3.0e-02", "1", "0.5",
    )  # fmt: skip
    rows = [
        verified,
        verified._replace(name="b_net", error32="9.0e-06"),
        Row("c_vit", "vits", REFUSED, "c_vit: it reads the image itself, as a stem", spatial_convolutions=1),
        Row("d_net", "nets", FAILED, "RuntimeError: no"),
        Row("e_net", "nets", NOT_RUN, "too large: it needs about 40 GiB, the limit is 8 GiB"),
    ]
    csv_path, page = tmp_path / "zoo.csv", tmp_path / "zoo.md"
    writer = zoo.Writer(csv_path, len(rows))
    for row in [rows[0]._replace(status=FAILED), *rows]:
        writer.write(row)
    zoo.tidy(csv_path)
    zoo.describe_machine(tmp_path / "zoo.json")
    summarise(zoo.read(csv_path).values(), tmp_path / "zoo.json", page)
    text = page.read_text(encoding="utf-8")
    for status, count in ((VERIFIED, 2), (REFUSED, 1), (FAILED, 1), (NOT_RUN, 1)):
        assert f"| {status} | {count} |" in text
    assert "| nets | 4 | 2 | – | 1 | 1 | 3×3 7×7 | 9.0e-06 | 1.0e-16 | 3.0e-02 |" in text
    assert "`c_vit`" in text.split("## Refused")[1]
    assert "`d_net`: RuntimeError: no" in text.split("## Failed")[1]
    assert "`e_net`: too large" in text.split("## Not run")[1]
    assert json.loads((tmp_path / "zoo.json").read_text(encoding="utf-8"))["processor"] in text
