"""The documentation's site is built without a warning, and its pages are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    # Not --quiet: it would keep warnings from --strict, too, which counts what is logged.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(ROOT / "tools" / "site" / "mkdocs.yml"), "-d", str(built)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def test_each_document_is_a_page_and_is_found_by_the_search(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    index = (site / "search" / "search_index.json").read_text()
    for document in documents:
        page = document.with_suffix(".html")
        assert page.name == "README.html" or (site / page).exists(), document
    for words in ("The first five minutes", "MagnetarDiskFull", "0044: Metrics", "Two commands"):
        assert words in index


def test_each_link_within_the_site_leads_somewhere(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', page.read_text()):
            # The page for what is not found has addresses from the root.
            place = site / target[1:] if target.startswith("/") else page.parent / unquote(target)
            if not place.exists():
                lost.append(f"{page.relative_to(site)}: {target}")
    assert lost == []


def test_no_page_asks_another_site_for_anything(site: Path) -> None:
    asked = set()
    for page in site.rglob("*.html"):
        asked |= set(
            re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', page.read_text())
        )
        asked |= set(
            re.findall(r'<link[^>]+stylesheet[^>]+href="(https?:[^"]+)"', page.read_text())
        )
    assert asked == set()
