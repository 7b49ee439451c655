"""docs/cli.md names every command, option, exit code and JSON key that there is, and none that there is not;
docs/finetune.md states every setting with its default and its meaning, and every preset."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT
from pydantic import BaseModel
from tiny_runs import TwoConvs, colours, run

from tcnn import errors
from tcnn.analysis.reading.model_info import ModelInfo, Trained, Verified
from tcnn.cli.group import command_group
from tcnn.cli.main import INTERRUPTED
from tcnn.cli.options.spellings import SPELLINGS
from tcnn.config import PRESETS, FinetuneConfig
from tcnn.config.base import ErrorStats
from tcnn.conversion.report import ConversionReport, LayerReport, SkippedLayer
from tcnn.demo.journey import DemoResult, Row
from tcnn.evaluation.comparing.paired import PairedDifference
from tcnn.evaluation.comparing.report import Comparison, CorruptionScore
from tcnn.evaluation.comparing.report import Row as EvaluationRow
from tcnn.evaluation.comparing.single_images import Mistake, ModelChange
from tcnn.evaluation.predict import Answers, Guess, Prediction, PredictionReport
from tcnn.evaluation.scores import Evaluation
from tcnn.exporting.interface import ExplorerReport, ExportAxis, ExportCheck, ExportReport
from tcnn.folding.report import FoldedLayer, FoldReport, FoldResult, PrunedHead, PruningAccuracy, Speed
from tcnn.planning.report import PlannedDisk, PlannedMemory, PlannedModel, PlannedPhase, TrainingPlan
from tcnn.publishing.push import PushedFile, PushReport
from tcnn.training.single_run import FinetuneResult
from tcnn.verification.report import AsRun, Drift, DtypePass, LayerError, VerificationReport
from tcnn.vit.report import InitialisationReport, InitialisedLayer
from tcnn.workflows.pipeline import ConversionResult
from tcnn.zoo.catalogue import Entry

PAGE = (ROOT / "docs/cli.md").read_text()
GROUP: Any = command_group([])
SERVING = {"serve", "worker"}
"""They run until they are stopped, and have no result to print."""
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][a-z-]*")
EVERYWHERE = {"--help", "-h", "--debug", "--json", "--quiet", "-q", *chain.from_iterable(SPELLINGS.values())}


def section(title: str) -> str:
    """The text under a heading of the second level."""
    found = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, title
    return found[0]


def table(text: str) -> list[list[str]]:
    """The rows of every option table in a text, as cells."""
    lines = re.findall(r"^\| (`-.*) \|$", text, re.MULTILINE)
    return [re.split(r" \| ", line) for line in lines]


def options(command: Any) -> set[str]:
    """Every option string that a command takes, or one of the commands within it; `tcnn` itself has only its own."""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    own = {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")}
    inner = {} if command is GROUP else getattr(command, "commands", {})
    return own.union(command.context_settings.get("help_option_names", ()), *map(options, inner.values()))


def leaves(command: Any, name: str) -> dict[str, Any]:
    """A command, or all within a group, by what is typed."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return {name: command}
    return {full: leaf for key, value in inner.items() for full, leaf in leaves(value, f"{name} {key}").items()}


def documented(text: str) -> set[str]:
    return {name for row in table(text) for name in OPTION.findall(row[0])}


def test_every_command_has_a_section() -> None:
    assert set(re.findall(r"^## tcnn (\w+)$", PAGE, re.MULTILINE)) == set(GROUP.commands)


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_every_option_of_a_command_is_in_its_table(name: str) -> None:
    real = options(GROUP.commands[name])
    assert real
    assert documented(section(f"tcnn {name}")) | EVERYWHERE == real | EVERYWHERE
    assert name in SERVING or "--json" in documented(section(f"tcnn {name}")) & real


@pytest.mark.parametrize("name", sorted(leaves(GROUP.commands["jobs"], "tcnn jobs")))
def test_every_command_of_jobs_has_its_options_in_a_table(name: str) -> None:
    """The last table is of what all of them take."""
    text = section("tcnn jobs")
    assert re.search(rf"^    {name}\b", text, re.MULTILINE), "it is not in the synopsis"
    parts = re.split(r"^### ", text, flags=re.MULTILINE)
    everywhere = documented(parts[-1])
    assert everywhere >= {"--server", "--key", "--json"}
    own = {part.splitlines()[0]: documented(part) for part in parts[1:-1]}
    real = options(leaves(GROUP.commands["jobs"], "tcnn jobs")[name]) - everywhere - EVERYWHERE
    assert own.get(name, set()) == real


def test_options_of_tcnn_itself() -> None:
    assert documented(section("Every command")) == options(GROUP) | EVERYWHERE


def test_every_option_mentioned_exists() -> None:
    real = set.union(options(GROUP), *(options(command) for command in GROUP.commands.values()), EVERYWHERE)
    mentioned = {name for code in re.findall(r"`([^`\n]+)`", PAGE) for name in re.findall(r"(?<![\w-])--[a-z-]+", code)}
    assert mentioned - real == set()
    assert {name for name in real - mentioned if name.startswith("--")} == set()


@pytest.mark.parametrize("name", ["convert", "verify", "fold", "export", "demo"])
def test_defaults_and_values(name: str) -> None:
    """A default that the command line shows stands in the table, and so does the name of the option's value."""
    rows = {OPTION.findall(row[0])[0]: row for row in table(section(f"tcnn {name}"))}
    for parameter in GROUP.commands[name].params:
        if parameter.opts[0] not in rows:
            continue
        option, default, _ = rows[parameter.opts[0]]
        if parameter.metavar:
            assert f"{parameter.opts[0]} {parameter.metavar}`" in option
        if parameter.is_flag and not parameter.secondary_opts:
            assert default == "off"
        elif not parameter.is_flag and parameter.default is not None:
            assert default == f"`{parameter.default}`"


def test_exit_codes() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TcnnError)]
    assert codes == {0, INTERRUPTED, *(kind.exit_code for kind in kinds)}


def test_error_names() -> None:
    named = set(re.findall(r"`(\w+(?:Error|Failure)|Stopped)`", section("JSON")))
    kinds = {kind.__name__ for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert named - {"UsageError", "InternalError"} == kinds - {
        "TcnnError",
        "ConfigError",
    }  # no command builds one by its class


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("convert", [ConversionResult, ConversionReport, LayerReport, SkippedLayer]),
        ("verify", [VerificationReport, DtypePass, AsRun, ErrorStats, LayerError, Drift]),
        ("plan", [TrainingPlan, PlannedModel, PlannedMemory, PlannedPhase, PlannedDisk]),
        ("push", [PushReport, PushedFile]),
        ("init", [InitialisationReport, InitialisedLayer]),
        ("fold", [FoldResult, FoldReport, FoldedLayer, PrunedHead, PruningAccuracy, ErrorStats, Speed]),
        ("export", [ExportReport, ExportAxis, ExportCheck, ErrorStats, ExplorerReport]),
        ("info", [ModelInfo, Verified, Trained]),
        ("models", [Entry]),
        ("demo", [DemoResult, Row]),
        ("finetune", [FinetuneResult]),
        ("evaluate", [Comparison, EvaluationRow, CorruptionScore, Evaluation, Mistake, PairedDifference, ModelChange]),
        ("predict", [PredictionReport, Answers, Prediction, Guess]),
    ],
)
def test_json_keys(command: str, kinds: list[type[BaseModel]]) -> None:
    text = re.search(rf"^`tcnn {command} --json`.*?(?=\n`tcnn|\Z)", section("JSON"), re.MULTILINE | re.DOTALL)
    assert text
    named = set(re.findall(r"[`.](\w+)(?:\[\])?(?=[`.])", text[0]))
    fields = {name for kind in kinds for name in kind.model_fields}
    assert fields - named == set()


FINETUNE = (ROOT / "docs/finetune.md").read_text()


def test_every_setting_stands_in_the_table() -> None:
    shown = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", FINETUNE[FINETUNE.index("## Settings") :], re.MULTILINE)
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
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", FINETUNE, re.MULTILINE) == list(PRESETS)


def test_keys_of_the_metrics(tmp_path: Path) -> None:
    """Those of a run that is made, and no others."""
    run(TwoConvs(), colours(tmp_path / "colours"), tmp_path / "run", epochs=1, log_steps=1)
    real: dict[str, set[str]] = {}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        real.setdefault(row["kind"], set()).update(row)
        if row["kind"] == "epoch":
            assert set(row["val"]) == {"top1", "top5", "loss", "images"}
    told: dict[str, set[str]] = {"train": set(), "epoch": set()}
    table = FINETUNE.partition("| key | in | value |")[2].partition("\n\n")[0]
    for keys, kinds in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, re.MULTILINE):
        for kind in told if kinds == "both" else re.findall(r"`(\w+)`", kinds):
            told[kind].update(re.findall(r"`(\w+)`", keys))
    assert told == real
