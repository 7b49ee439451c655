"""The documentation as a site: links lead somewhere, all pages and public names are in it, nothing from elsewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

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


def test_every_page_is_in_the_menu() -> None:
    text = (ROOT / "docs/site/conf.py").read_text(encoding="utf-8")
    named = set(" ".join(re.findall(r'^    "\w+": "([\w -]+)",$', text, re.MULTILINE)).split())
    assert named == {path.stem for path in (ROOT / "docs").glob("*.md")}


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/site/reference.rst").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. auto(?:function|class|exception):: tcnn\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(set(tcnn.__all__) - {"__version__"})


@pytest.mark.slow  # 20 s
@pytest.mark.skipif(not SPHINX, reason="NOT TESTED: the site, for lack of Sphinx; make docs installs it")
def test_the_site(tmp_path: Path) -> None:
    """It is built without a warning, and a browser asks nobody else for anything."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--builder",
        "dirhtml",
        "--conf-dir",
        "docs/site",
    ]
    done = subprocess.run([*command, ".", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    built = sorted(tmp_path.rglob("*.html"))
    assert {tmp_path / page.removesuffix(".md") / "index.html" for page in PAGES} <= set(built)
    for file in built:
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.https?:[^>]*>", text) == [], file
    math = (tmp_path / "docs/math/index.html").read_text(encoding="utf-8")
    assert math.count("<math ") > 5
    assert "tcnn.GPSA2d" in (tmp_path / "docs/site/reference/index.html").read_text(encoding="utf-8")
