"""Every shell command of the documentation is run: in the page's order, in one directory, with small models and images.

What is not run has its reason here, by its first words or because of what it is, and how many of each there are. Those
of docs/tutorial.md run one after the other, with a tiny model and a tiny folder, and print what they must.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pages
import pytest
from data_pictures import draw_classes
from desk import Desk, hub_of_weights, run_once, smaller
from hub_server import Hub
from safetensors.torch import save_file
from torch import nn

PAGES = [*sorted(str(path.relative_to(pages.ROOT)) for path in (pages.ROOT / "docs").glob("*.md")), "README.md"]
ELSEWHERE = {
    "docs/tutorial.md": "a test below has what they must print",
    "docs/http-api.md": "test_http_api_page.py runs the page against a server",
}
"""Pages that have a test of their own."""
NOT_RUN: tuple[tuple[str, str], ...] = (
    (r"(\w+=\S+ )*(/opt/tcnn/bin/)?tcnn (serve|worker)\b", "runs until it is stopped: tests/api/test_serve_process.py"),
    (r"tcnn jobs\b", "asks a server: tests/jobs/client"),
    (r"tcnn finetune .*--engine ray", "needs a Ray cluster: tests/slow/test_ray.py"),
    (r"HF_HOME=\S+ tcnn", "two machines: tests/cli/test_cli_processes.py"),
    (r"make\b", "a target of the Makefile"),
    (r"(/opt/tcnn/bin/)?pip install|python3 -m venv|pre-commit", "installs: tests/deploy"),
    (r"docker\b|useradd|install -|systemctl|printf|openssl|sqlite3|psql|pg_dump|pg_restore|"
     r"rsync|rm --force|mv\b|export\b|ray\b",
     "an administrator's: tests/deploy"),
    (r"(\.venv/bin/)?python\b|with-tcnn|alias with-tcnn", "a script: test_timm_scripts.py runs timm's"),
    (r"curl\b", "asks a server: test_http_api_page.py"),
)  # fmt: skip
EXPECTED = {
    "run": 109,
    "a test below has what they must print": 8,
    "test_http_api_page.py runs the page against a server": 56,
    "asks a server": 12,
    "runs until it is stopped": 7,
    "needs a Ray cluster": 1,
    "two machines": 2,
    "a script": 8,
    "a target of the Makefile": 12,
    "installs": 7,
    "an administrator's": 37,
}
"""Commands of the documentation, by what becomes of them here."""


def lines(page: str) -> Iterator[str]:
    """The commands of a page's shell blocks, one by one; those of console blocks are run by test_readme.py."""
    for block in pages.blocks(page):
        if block.language in ("bash", "sh"):
            code = re.sub(r"\\\n\s*", " ", block.code)
            yield from (line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def reason(page: str, line: str) -> str | None:
    """Why a command is not run here; None where it is."""
    found = next((why for pattern, why in NOT_RUN if re.match(pattern, line)), None)
    return found or ELSEWHERE.get(page)


def runnable(page: str) -> list[list[str]]:
    """The words of every command that is run."""
    return [shlex.split(line, comments=True) for line in lines(page) if reason(page, line) is None]


RUN = [page for page in PAGES if runnable(page)]


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def hub(
    patch: pytest.MonkeyPatch, lively: Callable[..., nn.Module], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with hub_of_weights(patch, lively, tmp_path_factory.mktemp("cache")) as hub:
        yield hub


@pytest.fixture(scope="module")
def desk(
    hub: Hub, lively: Callable[..., nn.Module], patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Desk:
    root = tmp_path_factory.mktemp("desk")
    desk = Desk(root, lively)
    with pytest.MonkeyPatch.context() as here:
        here.chdir(root)
        run_once(desk, root)
    return desk


@pytest.mark.slow  # that all of them parse, and the prompts of three pages, are in test_readme.py
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_its_order(
    page: str, desk: Desk, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TCNN_HOME", str(tmp_path / "home"))
    desk.lay(tmp_path)
    made: dict[str, str] = {}
    for words in runnable(page):
        name, *arguments = [made.get(word[:3], word) if re.fullmatch(r"key_\w+", word) else word for word in words]
        assert name == "tcnn", words
        arguments, target = (arguments[:-2], arguments[-1]) if ">" in arguments else (arguments, None)
        desk.give(tmp_path, pages.parse(arguments))
        code, said = pages.run(smaller(arguments))
        # Exit code 3 of `verify` is an answer: these are two functions.
        assert code in (0, 3 if arguments[0] == "verify" else 0), (
            f"{page}: {shlex.join(words)}\nrun as: tcnn {shlex.join(smaller(arguments))}\n{said}"
        )
        made |= {found.partition("_")[0]: found for found in re.findall(r"\bkey_[0-9a-f]{24}\b", said)}
        if target:
            (tmp_path / target).write_text(said, encoding="utf-8")


def test_what_is_not_run_has_a_reason_and_is_counted() -> None:
    counted: Counter[str] = Counter()
    for page in PAGES:
        for line in lines(page):
            counted[(reason(page, line) or "run").partition(":")[0]] += 1
    assert dict(counted) == EXPECTED


OPERATIONS = "docs/operations.md"
GROUPS = {"keys": {"create", "list", "revoke"}, "tenants": {"set", "list"}, "audit": {"--tenant", "--key"}}
"""Commands that need a database and nothing else."""


def shown_by_operations() -> list[list[str]]:
    """What follows `tcnn` in the page's blocks, of these groups."""
    blocks = [block for block in pages.blocks(OPERATIONS) if block.language == "bash"]
    found = [command.arguments for block in blocks for command in pages.commands(block)]
    return [arguments for arguments in found if arguments and arguments[0] in GROUPS]


def test_the_operators_page_shows_each_of_them() -> None:
    assert {tuple(arguments[:2]) for arguments in shown_by_operations()} == {
        (group, name) for group, names in GROUPS.items() for name in names
    }


TUTORIAL = "docs/tutorial.md"
MODEL = "resnet18"
TINY = ("--epochs", "1", "--batch-size", "8", "--size", "32", "--set", "workers=0", "--device", "cpu")
LOCAL = ("--weights", "weights.safetensors")
"""Where weights cannot be downloaded they come from a file."""


def smaller_tutorial(arguments: list[str]) -> list[str]:
    """A command of the page with what makes it quick, and needs no network; all that it says stays."""
    words = [word.replace(MODEL, "test_resnet") for word in arguments]
    extra = {"convert": LOCAL, "verify": LOCAL, "finetune": (*LOCAL, *TINY)}
    return [*words, *extra.get(words[0], ())]


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run_and_print_what_they_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lively: Callable[..., nn.Module]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(lively().state_dict(), "weights.safetensors")
    draw_classes(tmp_path / "photos", ["cat", "dog"], 20)
    printed: dict[str, list[str]] = {}
    for block in pages.blocks(TUTORIAL):
        for arguments, _ in pages.commands(block) if block.language == "bash" else ():
            code, output = pages.run(smaller_tutorial(arguments))
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
