"""The documentation as a site: links lead somewhere, all pages and public names are in it, nothing from elsewhere."""

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

import tcnn

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/site").glob("*.md"))
)
SPHINX = importlib.util.find_spec("sphinx") and importlib.util.find_spec("myst_parser")


def anchors(text: str) -> set[str]:
    """As GitHub makes them from headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = ROOT / page if not path else (ROOT / page).parent / path
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page} links to {target}"


def test_links_to_what_is_not_there_are_found() -> None:
    assert anchors("# One\n\n## Two, three: `four`\n") == {"one", "two-three-four"}


def ragged(text: str) -> list[str]:
    """Rows of tables that have more or fewer cells than the head of their table."""
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for table in re.findall(r"(?:^\|.*\n?)+", outside_code, re.MULTILINE):
        head, *rows = table.splitlines()
        cells = [len(re.split(r"(?<!\\)\|", row)) for row in (head, *rows)]
        found += [row for row, count in zip(rows, cells[1:], strict=True) if count != cells[0]]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: str) -> None:
    assert ragged((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_row_without_a_cell_is_found() -> None:
    assert ragged("| a | b |\n|---|---|\n| 1 | |\n| 2 |\n\n| c |\n|---|\n| 3 |\n") == ["| 2 |"]


def test_every_page_is_in_the_menu() -> None:
    text = (ROOT / "docs/site/conf.py").read_text(encoding="utf-8")
    named = set(" ".join(re.findall(r'^    "\w+": "([\w -]+)",$', text, re.MULTILINE)).split())
    assert named == {path.stem for path in (ROOT / "docs").glob("*.md")}


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/site/reference.rst").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. auto(?:function|class|exception):: tcnn\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(set(tcnn.__all__) - {"__version__"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    if not SPHINX:
        pytest.skip("NOT TESTED: the site, for lack of Sphinx; make docs installs it")
    out = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--builder", "dirhtml", "--conf-dir", "docs/site")
    command = [sys.executable, "-m", "sphinx", *options, ".", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.mark.slow  # 20 s
def test_the_site(site: Path) -> None:
    """A browser asks nobody else for anything."""
    built = sorted(site.rglob("*.html"))
    assert {site / page.removesuffix(".md") / "index.html" for page in PAGES} <= set(built)
    for file in built:
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.https?:[^>]*>", text) == [], file
    math = (site / "docs/math/index.html").read_text(encoding="utf-8")
    assert math.count("<math ") > 5
    assert "tcnn.GPSA2d" in (site / "docs/site/reference/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site: Path, scheme: Any) -> None:
    """On pages with code, tables, formulas, signatures, and on the search, which has no title of the theme's."""
    axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="NOT TESTED: accessibility").Axe
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: accessibility")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NOT TESTED: accessibility, for lack of chromium")
    found: list[str] = []
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--allow-file-access-from-files"]
        ) as browser,
    ):
        page = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800}).new_page()
        for name in ("README/", "docs/cli/", "docs/math/", "docs/site/reference/", "search/"):
            page.goto(f"file://{site}/{name}index.html")
            for each in axe().run(page).response["violations"]:
                found += [f"{name} {each['id']}: {node['target']}" for node in each["nodes"]]
    assert found == []


def test_what_the_theme_leaves_undone_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule by itself, where no browser is at hand."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    accessible = importlib.import_module("accessible")
    made = accessible.accessible(
        '<article role="main" id="furo-main-content"><pre>x</pre><table><tr><th class="head"><p></p></th></tr></table>'
        '<p class="caption" role="heading">Use</p><dl>\n<dd><em class="sig-param">a</em>,</dd>\n</dl>'
    )
    assert made.startswith('<article role="main" id="furo-main-content"><h1>Search</h1><pre tabindex="0">x</pre>')
    assert '<td class="head"></td>' in made
    assert 'role="heading" aria-level="2"' in made
    assert "<dd>" not in made
    assert "<dl>" not in made
