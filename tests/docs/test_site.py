"""The site as a browser shows it: what can be read, and what is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.realparts import installed
from tests.real.realparts.browser import chromium

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.real, pytest.mark.gate]

FAULTS = """
const faults = [], shown = (element) => element.textContent.trim().slice(0, 60);
for (const text of document.querySelectorAll("figure.diagram svg :is(text, foreignObject span)")) {
  const drawn = text.getScreenCTM ? text : text.closest("foreignObject");
  const pixels = parseFloat(getComputedStyle(text).fontSize) * drawn.getScreenCTM().a;
  if (shown(text) && pixels < 11) faults.push(`letters of ${pixels.toFixed(1)} pixels: ${shown(text)}`);
}
for (const box of document.querySelectorAll(".md-content pre > code, .md-content .md-typeset__scrollwrap, html"))
  if (box.scrollWidth > box.clientWidth + 1) faults.push(`cut: ${shown(box)}`);
for (const name of document.querySelectorAll("dt code, td:first-child code"))
  if (name.getClientRects().length > 1) faults.push(`broken: ${shown(name)}`);
return faults;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("mermaidx", "mkdocs", "mkdocstrings"):
        installed(tool)
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        opened.set_window_size(1280, 1600)
        yield opened


def test_the_programs_that_build_it_are_not_published(site: Path) -> None:
    assert [str(file.relative_to(site)) for file in site.rglob("*.py*")] == []


def test_letters_can_be_read_and_nothing_is_cut(site: Path, browser: Any) -> None:
    faults = {}
    for page in sorted(site.rglob("*.html")):
        browser.get(page.as_uri())
        faults[str(page.relative_to(site))] = browser.execute_script(FAULTS)
    assert len(faults) > 60
    assert {page: seen for page, seen in faults.items() if seen} == {}


def test_a_small_letter_a_long_line_and_a_broken_name_are_seen(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<style>pre > code { display: block; overflow: auto }</style><div class="md-content">'
        f"<pre><code>{'x' * 400}</code></pre>"
        '<table><tr><td style="width: 5px; word-break: break-all"><code>name</code></td></tr></table></div>'
        '<figure class="diagram"><svg width="100" viewBox="0 0 400 100"><text y="20">small</text></svg></figure>'
    )
    browser.get(page.as_uri())
    assert {fault.split()[0] for fault in browser.execute_script(FAULTS)} == {"letters", "cut:", "broken:"}
