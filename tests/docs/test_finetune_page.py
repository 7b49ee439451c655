"""docs/finetune.md states every setting with its default and its meaning, and every preset."""

import re

from pages import ROOT

from tcnn.config import PRESETS, FinetuneConfig

PAGE = (ROOT / "docs/finetune.md").read_text()


def test_every_setting_stands_in_the_table() -> None:
    shown = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", PAGE[PAGE.index("## Settings") :], re.MULTILINE)
    fields = FinetuneConfig.model_fields
    assert [name for name, _, _ in shown] == list(fields)
    for name, default, meaning in shown:
        assert meaning == fields[name].description, name
        value = fields[name].default
        if value is None:
            assert default == "–", name
        elif name not in ("conversion", "ratio"):
            assert default == f"`{value!r}`", name


def test_every_preset_stands_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE) == list(PRESETS)
