"""`tcnn demo`: the whole journey, shortened."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tcnn
from tcnn.cli.main import main
from tcnn.conversion import checkpoint
from tcnn.data.image_set import open_dataset
from tcnn.training import digits

pytest.importorskip("sklearn", reason="THE DEMO IS UNTESTED: scikit-learn is not installed")


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_journey(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept_signals: None) -> None:
    out = tmp_path / "new" / "demo"
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--epochs", "2", "--finetune-epochs", "1", "--out", str(out), "--json"])
    printed, shown = capsys.readouterr()
    assert (ended.value.code, shown) == (0, "")
    result = json.loads(printed)

    assert result["predictions_unchanged"] is True
    assert result["held_out"] == digits.HELD_OUT
    source, converted, tuned = result["rows"]
    assert [row["model"] for row in result["rows"]] == ["source CNN", "converted", "fine-tuned"]
    assert converted["top1"] == source["top1"], "not one prediction changes"
    assert 0 < converted["equivalence_error"] < 1e-5
    assert converted["drift_at_1"] > 1e-3
    assert source["parameters"] < converted["parameters"] == tuned["parameters"]
    assert source["top1"] > 0.2, "two epochs are enough to do better than chance, twice over"

    kept, fine = Path(result["checkpoint"]), Path(result["run"]) / "last.safetensors"
    assert kept.parent == out
    assert checkpoint.read(kept).verification.passed
    held_out = open_dataset(str(out / "digits"), "val", in_chans=1)
    assert len(held_out) == digits.HELD_OUT
    for path, row in ((kept, converted), (fine, tuned)):
        model = tcnn.load(path)
        assert sum(parameter.numel() for parameter in model.parameters()) == row["parameters"]
        assert tcnn.evaluate(model, held_out).top1 == pytest.approx(row["top1"], abs=1e-12)
    temperatures = {float(layer.position_temperature) for layer in model.modules() if isinstance(layer, tcnn.GPSA2d)}
    assert temperatures == {1.0}, "fine-tuning took it all the way"
