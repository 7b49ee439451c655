"""Weights and local directories that are broken, harmful or another model's are refused in one line that names them."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

Run = Callable[..., Any]


Lively = Callable[..., nn.Module]


class Harmful:
    """Unpickling it writes a file."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.evidence}",)


class TestWeights:
    def convert(self, tcnn: Run, weights: object, *options: object) -> str:
        error = tcnn("convert", "test_resnet", "o.safetensors", "--weights", weights, *options).error(2)
        assert not Path("o.safetensors").exists()
        return error

    def test_that_are_missing(self, tcnn: Run, tmp_path: Path) -> None:
        assert "gone.pth: expected a weights file, found nothing" in self.convert(tcnn, "gone.pth")
        assert "found a directory" in self.convert(tcnn, tmp_path)

    @pytest.mark.parametrize("suffix", ["safetensors", "pth"])
    @pytest.mark.parametrize("damage", ["empty", "cut", "text"])
    def test_that_are_corrupt(self, tcnn: Run, lively: Lively, damage: str, suffix: str) -> None:
        path = Path(f"weights.{suffix}")
        (save_file if suffix == "safetensors" else torch.save)(lively().state_dict(), path)
        path.write_bytes({"empty": b"", "cut": path.read_bytes()[:-100], "text": b"these are no weights\n"}[damage])
        assert f"weights.{suffix}: not readable as safetensors or as PyTorch weights" in self.convert(tcnn, path)

    @pytest.mark.parametrize("form", ["torch", "pickle", "renamed"])
    def test_that_carry_code_never_run_it(self, tcnn: Run, tmp_path: Path, form: str) -> None:
        evidence = tmp_path / "it-ran"
        path = tmp_path / ("weights.safetensors" if form == "renamed" else "weights.pth")
        content = {"state_dict": {"conv1.0.weight": Harmful(evidence)}}
        if form == "torch":
            torch.save(content, path)
        else:
            path.write_bytes(pickle.dumps(content))
        assert "not readable as safetensors or as PyTorch weights without pickled code" in self.convert(tcnn, path)
        assert not evidence.exists()
        pickle.loads(pickle.dumps(content))
        assert evidence.exists(), "the file is harmful indeed: whoever unpickles it runs it"

    def test_that_hold_something_else(self, tcnn: Run) -> None:
        for content in ([1, 2], torch.zeros(3), {"epoch": 3}, {}):
            torch.save(content, "weights.pth")
            assert "weights.pth" in self.convert(tcnn, "weights.pth")

    def test_that_are_an_archive_of_something_else(self, tcnn: Run) -> None:
        with zipfile.ZipFile("photos.pth", "w") as archive:
            archive.writestr("cat/0.png", b"")
        assert "(it is an archive that torch.save did not write)" in self.convert(tcnn, "photos.pth")

    def test_of_another_model_name_the_first_key_that_differs(self, tcnn: Run, lively: Lively) -> None:
        save_file(lively("resnet10t").state_dict(), "weights.safetensors")
        error = self.convert(tcnn, "weights.safetensors")
        assert "does not fit test_resnet: conv1.0.weight: expected (16, 3, 3, 3), found (24, 3, 3, 3)" in error

    def test_with_a_key_too_few_or_too_many(self, tcnn: Run, lively: Lively) -> None:
        state = lively().state_dict()
        save_file(
            {name: tensor for name, tensor in state.items() if name != "layer2.0.conv1.weight"}, "few.safetensors"
        )
        assert "layer2.0.conv1.weight: expected (48, 32, 3, 3), not in the file" in self.convert(
            tcnn, "few.safetensors"
        )
        save_file({**state, "neck.weight": torch.zeros(1)}, "many.safetensors")
        assert "neck.weight: in the file, not in the model" in self.convert(tcnn, "many.safetensors")

    def test_under_other_names_show_them(self, tcnn: Run, lively: Lively) -> None:
        strange = {f"net.{number}": tensor for number, tensor in enumerate(lively().state_dict().values())}
        save_file(strange, "numbered.safetensors")
        assert "not in the file, whose keys are net." in self.convert(tcnn, "numbered.safetensors")

    def test_that_are_not_finite_are_named(self, tcnn: Run, lively: Lively) -> None:
        state = lively().state_dict()
        state["layer2.0.conv1.weight"][0, 0, 0, :2] = torch.nan
        save_file(state, "diverged.safetensors")
        assert (
            f"layer2.0.conv1.weight: 2 of {state['layer2.0.conv1.weight'].numel()} values are NaN or infinite"
            in self.convert(tcnn, "diverged.safetensors")
        )

    def test_of_another_number_of_classes_than_asked_for_name_it(self, tcnn: Run, weights: Path) -> None:
        error = self.convert(tcnn, weights, "--num-classes", 5)
        assert "fc.weight: expected (5, 96), found (10, 96)" in error
        assert "num_classes=10" in error


class TestALocalDirectory:
    """As a source that is broken in some way."""

    @pytest.mark.parametrize("dry", [False, True])
    @pytest.mark.parametrize("config", ["{oops", "{}", "[]", '{"architecture": "no_such_model"}'])
    def test_with_a_broken_config(self, tcnn: Run, local_source: str, tmp_path: Path, config: str, dry: bool) -> None:
        (tmp_path / "source/config.json").write_text(config)
        error = tcnn("convert", local_source, "o.safetensors", *(["--dry-run"] if dry else [])).error(2)
        assert error.startswith(local_source)

    @pytest.mark.parametrize("weights", [None, b"", b"no weights"])
    def test_with_broken_weights(self, tcnn: Run, local_source: str, tmp_path: Path, weights: bytes | None) -> None:
        file = tmp_path / "source/model.safetensors"
        file.unlink()
        if weights is not None:
            file.write_bytes(weights)
        assert tcnn("convert", local_source, "o.safetensors").error(2).startswith(local_source)
        assert not Path("o.safetensors").exists()

    def test_with_weights_that_carry_code(self, tcnn: Run, local_source: str, tmp_path: Path) -> None:
        (tmp_path / "source/model.safetensors").unlink()
        evidence = tmp_path / "it-ran"
        torch.save({"conv1.0.weight": Harmful(evidence)}, tmp_path / "source/pytorch_model.bin")
        assert tcnn("convert", local_source, "o.safetensors").error(2).startswith(local_source)
        assert not evidence.exists()

    def test_with_weights_of_another_architecture(self, tcnn: Run, local_source: str, tmp_path: Path) -> None:
        config = json.loads((tmp_path / "source/config.json").read_text())
        (tmp_path / "source/config.json").write_text(json.dumps(config | {"architecture": "resnet10t"}))
        assert "size mismatch for conv1.0.weight" in tcnn("convert", local_source, "o.safetensors").error(2)

    def test_that_was_converted_before(self, tcnn: Run, lively: Lively, tmp_path: Path) -> None:
        save_for_hf(lively("t_test_resnet"), tmp_path / "again", safe_serialization=True)
        assert "it was converted before" in tcnn("convert", "local-dir:again", "o.safetensors").error(2)
