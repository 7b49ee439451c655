"""What an experiment says: what is wrong with it is told in one line, those of this repository load, and those for the
paper's tables and figures run from end to end, on a folder of a few tiny images."""

import json
from pathlib import Path
from typing import Any

import pytest
import run as runner
import timm
import torch
import yaml
from arms import size, sized, training
from experiment import changed, load
from figures import pictures
from tiny_experiment import TINY, call, images, write

from tcnn.config import FinetuneConfig

REPRODUCE = Path(__file__).parents[2] / "benchmarks" / "reproduce"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "cn"}, "reference: no arm 'cn'; did you mean cnn?"),
        ({"arms": {"cnn": {"convert": False}, "a": {"control": "dnn"}}}, "arms.a.control: no arm 'dnn'; did you"),
        ({"arms": {"cnn": {"beside": ["dnn"]}}}, "arms.cnn.beside: no arm 'dnn'; did you mean cnn?"),
        ({"arms": {"cnn": {}, "a": {"control": "cnn"}}}, "arms.a.control: cnn is no CNN"),
        ({"arms": {"cnn": {"epoch": 3}}}, "arms.cnn: epoch: no such setting; did you mean epochs?"),
        ({"arms": {"cnn": {"conversion": {"strde": 1}}}}, "conversion.strde: no such setting; did you mean"),
        ({"arms": {"A CNN": {}}}, "arms: 'A CNN': expected a name of small letters"),
        ({"arms": {"cnn": {"equal_time_to": "cnn"}}}, "arms.cnn: equal_time_to needs `like: ARM`"),
        ({"arms": {"cnn": {"start": "adopted"}}}, "start: input should be 'adapted', 'published' or 'untrained'"),
        ({"arms": {"cnn": {"start": "adapted"}}, "adapt": None}, "arms.cnn.start: there is no `adapt`"),
        ({"arms": {"cnn": {"published_size": True, "size": 8}}}, "arms.cnn: it has a size of its own beside published"),
        ({"arms": {}}, "expected `model: …`, `arms: …`"),
        ({"preset": "cifa"}, "preset: 'cifa'; expected one of paper"),
        ({"corrupted": {"corruptions": ["mist"]}}, "'mist' is no ImageNet-C corruption"),
        ({"seeds": [1, 1]}, "seeds: expected different numbers"),
        ({"modle": "x"}, "modle: no such setting; did you mean model?"),
        ({"model": "resnet19"}, "resnet19"),
        ({"pretrained": True}, "resnet20: give the file of its weights with --weights"),
        ({"recipe": {**TINY["recipe"], "drop_path": 0.1}}, "drop_path: resnet20 has no stochastic depth"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(write(tmp_path / "wrong.yaml", **changes), data, tmp_path) == 2
    said = capsys.readouterr()
    lines = (said.err + said.out).splitlines()
    assert message in lines[0]
    assert "Traceback" not in said.err


def test_missing_data_weights_and_names_are_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "tiny.yaml")
    for more, message in (
        (["--arms", "cn"], "run: --arms: no arm 'cn'; did you mean cnn?"),
        (["--seeds", "7"], "run: --seeds: [7] are none of the experiment's [0, 1]"),
        (["--weights", "gone"], "run: --weights: gone is no file"),
        (["--weights", str(file)], "run: --weights: this experiment begins with random weights; leave it out"),
        (["--set", "epohcs=3"], "run: --set epohcs=3: adapt: epohcs: no such setting; did you mean epochs?"),
        (["--set", "epochs"], "run: --set epochs: expected KEY=VALUE"),
    ):
        assert call(file, data, tmp_path, *more) == 2
        assert capsys.readouterr().err.startswith(message)
    assert call(file, tmp_path / "nowhere", tmp_path) == 2
    assert "nowhere: no such data set" in capsys.readouterr().out
    assert runner.main([str(tmp_path / "none.yaml"), "--data", str(data)]) == 2
    assert "none.yaml: not readable as YAML" in capsys.readouterr().err


def test_no_option_is_suggested_that_the_runner_does_not_have(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "tiny.yaml", pretrained=True, adapt=None)
    assert call(file, data, tmp_path, "--model", "resnetblur18") == 2
    told = capsys.readouterr().out
    assert "resnetblur18: timm has no pretrained weights for it; give --weights FILE\n" in told


def test_two_runners_do_not_share_a_directory(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, work = write(tmp_path / "tiny.yaml"), tmp_path / "work"
    more = ["--seeds", "0", "--minutes", "0.0001", "--work", str(work)]
    with runner.alone(work):
        assert call(file, data, tmp_path, *more) == 2
        assert (
            capsys.readouterr().err == f"run: --work: {work} is in use; wait for the other runner, or choose another\n"
        )
    assert call(file, data, tmp_path, *more) == runner.STOPPED, "when the other is gone"


@pytest.mark.parametrize("file", sorted((REPRODUCE / "experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_experiment_loads_and_every_arm_has_its_recipe(file: Path) -> None:
    experiment = load(file)
    assert experiment.about and experiment.title != experiment.name
    for arm in experiment.arms:
        configs = [experiment.config(arm, seed) for seed in experiment.seeds]
        assert [config.seed for config in configs] == list(experiment.seeds)
    assert runner.tasks(experiment, list(experiment.arms), experiment.seeds)


@pytest.mark.parametrize(("model", "published", "tuned"), [("resnetrs50", 160, 224), ("resnetrs152", 256, 320)])
def test_table_1_has_the_papers_sizes_for_every_model(model: str, published: int, tuned: int) -> None:
    """Transformed CNNs, Table 1: the resolution of training and of fine-tuning."""
    experiment = changed(load(REPRODUCE / "experiments" / "table1.yaml"), model, [])
    with torch.device("meta"):
        network = timm.create_model(model)
    found = {
        name: size(network, sized(arm, experiment.config(name, 0), network)) for name, arm in experiment.arms.items()
    }
    assert found == {name: (published,) * 2 if name == "published" else (tuned,) * 2 for name in experiment.arms}


def test_another_recipe_has_a_name_of_its_own(tmp_path: Path) -> None:
    """So that its rows do not take the place of the experiment's; what an arm sets itself stays."""
    arms = {**TINY["arms"], "long": {"like": "cnn", "epochs": 5}}
    experiment = load(write(tmp_path / "tiny.yaml", arms=arms))
    found = changed(experiment, "resnet18_32", ["epochs=3", "conversion.stride=dilate"])
    assert (found.name, found.model) == ("tiny-resnet18_32-epochs-3-conversion.stride-dilate", "resnet18_32")
    configs = {arm: found.config(arm, 0) for arm in found.arms}
    assert {arm: config.epochs for arm, config in configs.items()} == dict.fromkeys(arms, 3) | {"long": 5}
    assert all(config.conversion.stride == "dilate" and config.batch_size == 6 for config in configs.values())
    assert found.adapt_config().epochs == 4, "the first phase says itself how long it is"
    assert changed(experiment, None, []) == experiment


@pytest.mark.parametrize(("rates", "seconds"), [([100.0, None], 2.0), ([None, None], None)])
def test_an_epoch_that_was_stopped_at_its_end_has_no_rate(rates: list[float | None], seconds: float | None) -> None:
    """It took as long as the others; where there are none, nothing is said of time."""
    history: list[dict[str, Any]] = [
        {"updates": 10 * (epoch + 1), "images_per_second": rate, "val": {"top1": 0.5}, "train_loss": 1.0, "gates": {},
         "gate_mean": {}, "span_mean": {}, "epoch": epoch}
        for epoch, rate in enumerate(rates)
    ]  # fmt: skip
    found = training(history, FinetuneConfig(batch_size=10), heads=True)
    assert (found["updates"], found.get("train_seconds")) == (20, seconds)


EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "reproduce" / "experiments"
PAPERS = ["table1", "table2", "table3", "table4", "table5", "figure4", "figure6", "figure7", "ablations"]
DRAWN = {"table2": "gain-t-cnn", "figure4": "gates-t-cnn", "figure7": "resolution"}
SHORTENED = {"batch_size": 8, "micro_batch": 8, "checkpoint_steps": 50, "drop_path": 0.0}
"""Images take 32 pixels; epochs are divided by 50, and at least one."""


def short(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for an instant: as long as a fiftieth, so that what is converted late is still converted on the way."""
    changed = {**settings, **{key: max(1, settings[key] // 50) for key in ("epochs", "convert_at") if key in settings}}
    return changed | ({"size": 32} if "size" in settings else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_it_runs_on_a_folder_of_images(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8"))
    content["recipe"] = short({"epochs": 100, "size": 32, **content["recipe"]}) | SHORTENED
    content["arms"] = {arm: short(own) for arm, own in content["arms"].items()}
    if "adapt" in content:
        content["adapt"] = short(content["adapt"]) | {"lr": 1e-3}
    if content["corrupted"]:
        content["corrupted"] = {"images": 6, "corruptions": ["fog", "contrast"], "severities": [1, 5], "size": 32}
    if "sizes" in content:
        content["sizes"] = [24, 40]
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({**content, "pretrained": False}, sort_keys=False), encoding="utf-8")
    out = tmp_path / "small-test_resnet.json"
    data = images(tmp_path / "data")
    call = [str(file), "--data", str(data), "--model", "test_resnet", "--work", str(tmp_path / "w"), "--out", str(out)]
    assert runner.main(call) == 0
    found = json.loads(out.read_text())
    assert [row["arm"] for row in found["rows"]] == list(content["arms"])
    assert {entry["arm"] for entry in found["summary"] if "against" in entry} >= {
        arm for arm, own in content["arms"].items() if "control" in own
    }, "each with its interval"
    if name in DRAWN:
        assert pictures(found)[f"results-small-test_resnet-{DRAWN[name]}"][1]() is not None
