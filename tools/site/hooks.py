"""Makes a site of the repository's documents, whose links are those of the repository.

Documents outside docs/ become pages: README.md is the first page. Links are resolved as a reader of
the repository would, then written for the site. A link to a file that is no page, as a source file,
loses its link and keeps its text. MkDocs calls the functions by their names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
#: The pages of documents outside docs/, by their paths in the repository.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "spark_examples/README.md": "spark_examples/README.md",
}
_DECISIONS = "decisions/index.md"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, their pictures, and a list of decisions."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for picture in sorted((ROOT / "spark_examples" / "pictures").iterdir()):
        page = f"spark_examples/pictures/{picture.name}"
        files.append(File.generated(config, page, content=picture.read_bytes()))
    files.append(File.generated(config, _DECISIONS, content=decisions()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the links of a page for the site."""
    here = page.file.src_uri
    pages = {each.src_uri for each in files}
    parts = _FENCE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [
        _LINK.sub(lambda found: _rewritten(found, here, pages), part) for part in parts[::2]
    ]
    return "".join(parts)


def decisions() -> str:
    """Return a page with the title of each decision."""
    lines = ["# Decisions\n", "Each choice, its alternatives and its measurement.\n"]
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _rewritten(found: re.Match[str], here: str, pages: set[str]) -> str:
    picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    if "://" in target or not target:
        return found[0]
    page = _page_of(target, here)
    if page not in pages:
        return text
    relative = posixpath.relpath(page, posixpath.dirname(here) or ".")
    return f"{picture}[{text}]({relative}{anchor})"


def _page_of(target: str, here: str) -> str:
    """Return the page that a link means, as the repository has it."""
    sources = {page: source for source, page in OUTSIDE.items()}
    source = sources.get(here, f"docs/{here}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "docs/decisions":
        return _DECISIONS
    if posixpath.dirname(path) == "spark_examples/pictures":
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else path
