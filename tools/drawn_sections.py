"""The sections of a document that a tool draws; what is around them is written by hand.

A section stands between `<!-- drawn by python -m TOOL: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def with_sections(page: str, sections: Mapping[str, Callable[[], str]], tool: str) -> str:
    """Return `page` with these sections drawn again by the module `tool`.

    Raises ValueError for a section that the page has no place for.
    """
    for name, draw in sections.items():
        begin = f"<!-- drawn by python -m {tool}: {name} -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition("<!-- end -->")
        if not found or not ended:
            raise ValueError(f"the page has no place for: {name}")
        page = f"{before}{begin}{draw()}\n<!-- end -->{after}"
    return page


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(_lines(head, rows))


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
