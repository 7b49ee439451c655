"""docs/tutorial.md: its commands run as they stand, one after the other, with a tiny model and a tiny folder."""

from collections.abc import Callable
from pathlib import Path

import pages
import pytest
from data_pictures import draw_classes
from safetensors.torch import save_file
from torch import nn

PAGE = "docs/tutorial.md"
MODEL = "resnet18"
TINY = ("--epochs", "1", "--batch-size", "8", "--size", "32", "--set", "workers=0", "--device", "cpu")
LOCAL = ("--weights", "weights.safetensors")
"""Where weights cannot be downloaded they come from a file."""


def smaller(arguments: list[str]) -> list[str]:
    """A command of the page with what makes it quick, and needs no network; all that it says stays."""
    words = [word.replace(MODEL, "test_resnet") for word in arguments]
    extra = {"convert": LOCAL, "verify": LOCAL, "finetune": (*LOCAL, *TINY)}
    return [*words, *extra.get(words[0], ())]


@pytest.mark.slow
def test_the_commands_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lively: Callable[..., nn.Module]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(lively().state_dict(), "weights.safetensors")
    draw_classes(tmp_path / "photos", ["cat", "dog"], 20)
    printed: dict[str, list[str]] = {}
    for block in pages.blocks(PAGE):
        for arguments, _ in pages.commands(block) if block.language == "bash" else ():
            code, output = pages.run(smaller(arguments))
            assert code == 0, (arguments, output)
            printed.setdefault(arguments[0], []).append(output)
    assert list(printed) == ["convert", "verify", "finetune", "evaluate", "predict", "report"]
    assert all("equal in float32" in output for output in printed["convert"] + printed["verify"])
    assert all("10% of the images of every class are held out" in output for output in printed["finetune"])
    assert all("epoch 1: loss" in output for output in printed["finetune"])
    for output in printed["evaluate"]:
        assert "4 images" in output
        assert "measured on the images that training had held out" in output
    assert "cat" in printed["predict"][0]
    assert "dog" in printed["predict"][0]
