"""docs/math.md tells the truth: its code runs and prints what it says, its closed forms and its measurements agree."""

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tcnn
from tcnn.layers.backends.selection import use_backend
from tcnn.models.difference import errors
from tcnn.models.randomise import randomised

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/math.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE, re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def tables() -> list[list[list[str]]]:
    """Every table of the page as rows of cells, header first, emphasis and code marks removed."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    rows = [[re.sub(r"[*`]", "", line).strip()[1:-1].split("|") for line in t.splitlines()] for t in found]
    return [[[cell.strip() for cell in r] for i, r in enumerate(t) if i != 1] for t in rows]


def table(*header: str) -> list[list[str]]:
    """The rows under the one table whose header begins so."""
    found = [t[1:] for t in tables() if tuple(t[0][: len(header)]) == header]
    assert len(found) == 1, f"expected one table headed {header}, found {len(found)}"
    return found[0]


def temperature(text: str) -> float:
    return 1 / 46 if text in ("1/46", "converted, τ = 1/46") else float(text.removeprefix("converted, τ = "))


def number(text: str) -> float:
    """`3.5 %`, `1.2e-07`, `4,051`, `25.58` as a number; per cent as a fraction."""
    value = float(NUMBER.findall(text.replace(",", ""))[0])
    return value / 100 if "%" in text else value


def as_shown(text: str, value: float) -> bool:
    """Whether `text` is `value` rounded to the digits that the text has (one unit in the last place is allowed)."""
    digits = NUMBER.findall(text.replace(",", ""))[0]
    mantissa, _, exponent = digits.partition("e")
    unit = 10.0 ** (-len(mantissa.partition(".")[2]) + int(exponent or 0)) / (100 if "%" in text else 1)
    return abs(number(text) - value) <= 0.51 * unit


def theta(t: float) -> float:
    return sum(math.exp(-n * n / t) for n in range(-40, 41))


def gate(t: float) -> float:
    return 1 / (1 + math.exp(-1 / t))


def layer_error(t: float) -> float:
    """Eq. 6, but summed over the grid: what the tap lacks and what every other pixel has."""
    grid = torch.arange(-40, 41, dtype=torch.float64)
    share = torch.exp(-(grid[:, None] ** 2 + grid**2).flatten() / t) / theta(t) ** 2
    others = gate(t) * torch.cat([share[: len(share) // 2], share[len(share) // 2 + 1 :]])
    lacking = others.sum().item() + 1 / (1 + math.exp(1 / t))
    return math.hypot(lacking, others.norm().item())


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, str]]:
    lines = (ROOT / "benchmarks/results/drift.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def pick(rows: list[dict[str, str]], model: str, t: float | None, dtype: str = "float32") -> dict[str, str]:
    """The one row of a model at τ = t; None is the CNN itself."""

    def at(r: dict[str, str]) -> bool:
        if t is None or not r["temperature"]:
            return t is None and not r["temperature"]
        return math.isclose(float(r["temperature"]), t, rel_tol=1e-4)

    found = [r for r in rows if (r["model"], r["dtype"]) == (model, dtype) and at(r)]
    assert len(found) == 1, (model, t, dtype, found)
    return found[0]


def test_every_python_block_states_its_output() -> None:
    assert len(BLOCKS) == PAGE.count("```python") >= 8


@pytest.mark.parametrize(("code", "expected"), BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_block_prints_what_the_page_says(code: str, expected: str) -> None:
    printed = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/math.md", "exec"), {"__name__": "__docs__"})
    # The last digit shown may differ between versions of torch; words, order and everything else may not.
    assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", expected)
    for got, said in zip(NUMBER.findall(printed.getvalue()), NUMBER.findall(expected), strict=True):
        last_place = 10.0 ** -len(said.partition("e")[0].partition(".")[2])
        assert float(got) == pytest.approx(float(said), abs=last_place * 1.01 if "." in said else 0), (got, said)


def test_temperature_table() -> None:
    rows = table("τ", "gate g")
    assert [temperature(r[0]) for r in rows] == pytest.approx([1 / 46, 0.1, 0.2, 0.3, 0.5, 1])
    for tau, g, share, weight, error in rows:
        t = temperature(tau)
        values = (gate(t), theta(t) ** -2, gate(t) / theta(t) ** 2, layer_error(t))
        for text, value in zip((g, share, weight, error), values, strict=True):
            assert as_shown(text, value), (tau, text, value)


@pytest.mark.parametrize(
    ("sentence", "shown", "value"),
    [
        ("The gate is σ(1) = {}:", "0.731", gate(1)),
        (": {} of every head goes", "26.9 %", 1 - gate(1)),
        ("θ(1) = {} leaves", "1.7726", theta(1)),
        ("leaves the tap {} (almost 1/π)", "31.8 %", theta(1) ** -2),
        ("(almost 1/π), {} in all", "0.233", gate(1) / theta(1) ** 2),
        ("its four neighbours gets {}", "0.086", gate(1) / theta(1) ** 2 * math.exp(-1)),
        ("each diagonal one {}.", "0.031", gate(1) / theta(1) ** 2 * math.exp(-2)),
        ("at most e⁻⁴⁶ ≈ {} of", "1e-20", math.exp(-46)),
        ("and 1 − g ≈ {} too", "1e-20", 1 / (1 + math.exp(46))),
        ("machine epsilon is {} in float32", "1.2e-7", torch.finfo(torch.float32).eps),
        ("and {} in float64", "2.2e-16", torch.finfo(torch.float64).eps),
        ("the sum 1 + {} rounds", "4e-20", 4 * math.exp(-46)),
        ("smallest positive float32, {}.", "1e-45", torch.finfo(torch.float32).smallest_normal * 2.0**-23),
        ("that is {} exponentials", "4,032", 9 * 2 * 14 * 16),
        ("exponentials instead of {}:", "451,584", 9 * 196 * 256),
        ("they are {} of 81", "32", 9 * 9 - 7 * 7),
        ("K = 9 that is {}, a third", "778,276", 2 * 9 * 56 * 512 + 512**2 + 4 * 9),
        ("of the filter's {}.", "2,359,296", 9 * 512 * 512),
        ("dwarf it: {} beside", "353,476", 2 * 49 * 8 * 320 + 320**2 + 4 * 49),
        ("beside {} for the 7×7", "15,680", 49 * 320),
    ],
)
def test_number_in_a_sentence(sentence: str, shown: str, value: float) -> None:
    assert " ".join(PAGE.split()).count(sentence.format(shown)) == 1
    assert as_shown(shown, value), (shown, value)


def test_slope_of_the_gate() -> None:
    (row,) = table("τ", "1/46")
    header = next(t[0] for t in tables() if t[0][:2] == ["τ", "1/46"])
    for tau, text in zip(header[1:], row[1:], strict=True):
        t = temperature(tau)
        assert as_shown(text, gate(t) / (1 + math.exp(1 / t)) / t), (tau, text)
    slopes = {t / 1000: gate(t / 1000) * (1 - gate(t / 1000)) * 1000 / t for t in range(100, 2000)}
    steepest = max(slopes, key=lambda t: slopes[t])
    assert f"It is largest, {slopes[steepest]:.3f}, at τ = {steepest:.3f}." in PAGE


def test_cost_table_adds_up() -> None:
    m, n, k, d, c = 14 * 14, 16 * 16, 9, 56, 512
    exact = {
        "queries": m * c * k * d, "keys": n * c * k * d, "logits Q Kᵀ": k * m * n * d, "values X W_val": n * c * c,
        "attention times values": k * m * n * c, "output W_out": m * k * c * c, "the convolution": m * k * c * c,
    }  # fmt: skip
    exact["all"] = sum(exact.values()) - exact["the convolution"]
    rows = table("term", "multiply-adds")
    assert {r[0] for r in rows} == set(exact)
    for name, _, text in rows:
        assert as_shown(text, exact[name] / 1e6), (name, text)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row[0], marks=[] if row[0] == "resnet18" else pytest.mark.slow)
        for row in table("model", "layers", "parameters, CNN")
    ],
)
def test_whole_model_costs(row: list[str]) -> None:
    def flops(model: nn.Module) -> float:
        formula = use_backend("reference")
        with FlopCounterMode(display=False) as counter, formula, torch.no_grad(), torch.device("meta"):
            model.eval()(torch.empty(1, 3, 224, 224))
        return counter.get_total_flops() / 1e9

    with torch.device("meta"):
        source = timm.create_model(row[0])
    (kept, report), (removed, _) = tcnn.convert(source), tcnn.convert(source, stride="remove")
    added = sum(2 * x.heads * x.head_dim * x.in_channels + x.in_channels**2 + 4 * x.heads for x in report.layers)
    assert report.parameters_after - report.parameters_before == added
    assert row[1] == str(len(report.layers))
    values = [report.parameters_before / 1e6, report.parameters_after / 1e6, *map(flops, (source, kept, removed))]
    for text, value in zip(row[2:], values, strict=True):
        assert as_shown(text, value), (row[0], text, value)


def test_trained_table_is_the_csv(measured: list[dict[str, str]]) -> None:
    rows = table("", "right of 5,000")
    assert [r[0] for r in rows] == ["CNN", *(f"converted, τ = {t}" for t in ("1/46", "0.1", "0.2", "0.3", "0.5", "1"))]
    for name, right, top1, same, error in rows:
        source = name == "CNN"
        r = pick(measured, "resnet20-cifar10", None if source else temperature(name))
        assert (number(right), number(same)) == (float(r["right"]), float(r["same_answer"]))
        assert as_shown(top1, int(r["right"]) / 5000), (name, top1)
        assert error == "" if source else as_shown(error, float(r["relative"])), (name, error)


def test_random_table_is_the_csv(measured: list[dict[str, str]]) -> None:
    rows = table("model", "layers", "float64, τ = 1/46")
    temperatures = (1 / 46, 0.1, 0.2, 0.3, 0.5, 1)
    *models, average, formula = rows
    small, large = (
        int(pick(measured, "efficientnet_b0", 1)[f"parameters_{when}"]) / 1e6 for when in ("before", "after")
    )
    assert f"EfficientNet-B0 grows from {small:.1f} to {large:.1f} million" in PAGE
    assert len(models) >= 7
    for name, layers, exact, *texts in models:
        assert layers == pick(measured, name, 1)["layers"]
        assert as_shown(exact, float(pick(measured, name, 1 / 46, "float64")["relative"]))
        for text, t in zip(texts, temperatures, strict=True):
            assert as_shown(text, float(pick(measured, name, t)["relative"])), (name, t, text)
    for text, closed, t in zip(average[3:], formula[3:], temperatures, strict=True):
        own = [(int(r[1]), float(pick(measured, r[0], t)["layer_relative"])) for r in models]
        assert as_shown(text, sum(n * error for n, error in own) / sum(n for n, _ in own)), (t, text)
        assert as_shown(closed, layer_error(t)), (t, closed)


def test_measurements_show_equivalence(measured: list[dict[str, str]]) -> None:
    models = {r["model"] for r in measured}
    for name in models:
        assert float(pick(measured, name, 1 / 46)["relative"]) <= 1e-5, name
        assert float(pick(measured, name, 1 / 46, "float64")["relative"]) <= 1e-10, name
        assert float(pick(measured, name, 1)["relative"]) > 0.01, name
    assert pick(measured, "resnet20-cifar10", 1 / 46)["same_answer"] == "5000"


@pytest.mark.slow
def test_csv_is_what_the_code_measures_today(measured: list[dict[str, str]]) -> None:
    torch.manual_seed(0)
    source = timm.create_model("regnety_002").eval()
    model, report = tcnn.convert(source, temperature=0.2)
    images = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), randomised(source, model, images):
        expected, found = source(images), model(images)
    recorded = pick(measured, "regnety_002", 0.2)
    assert errors(expected, found).relative == pytest.approx(float(recorded["relative"]), rel=0.02)
    assert report.parameters_after == int(recorded["parameters_after"])
