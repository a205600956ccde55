"""No circle of imports between modules: each one can be read after those that it imports.

Imports under TYPE_CHECKING and inside functions count: a reader follows them too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wire", "coordinator", "logstore", "magnetar")
#: What is free of circles already, by package or module prefix. Add yours when it is.
FREE_OF_CIRCLES = ("wire", "coordinator", "logstore", "magnetar.config")

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(text: str) -> Iterator[str]:
    """Yield every name that may be a module: of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(sources: Mapping[str, str]) -> Graph:
    """Return what each module imports. A module in a package counts, not the package around it."""
    graph: Graph = {}
    for name, text in sources.items():
        wanted = {other for other in imported_names(text) if other in sources and other != name}
        # `from package import module` names the package only to reach the module.
        graph[name] = {
            other
            for other in wanted
            if not any(deeper.startswith(f"{other}.") for deeper in wanted)
            and not name.startswith(f"{other}.")
        }
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected sets of two or more modules, each sorted. Source: Tarjan."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            at = path.index(name)
            circle, path[at:] = path[at:], []
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return sorted(found)


def is_held(name: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in FREE_OF_CIRCLES)


def test_no_module_imports_itself_through_others() -> None:
    graph = import_graph({name: path.read_text() for name, path in modules().items()})
    broken = [circle for circle in circles(graph) if any(map(is_held, circle))]
    if broken:
        pytest.fail("\n".join(f"a circle: {', '.join(circle)}" for circle in broken), pytrace=False)


def test_a_circle_is_found_whichever_way_it_is_imported() -> None:
    graph = import_graph(
        {
            "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b",
            "b": "def late():\n    from package import c",
            "package": "from package.c import C",
            "package.c": "from a import A",
            "d": "import a",
        }
    )
    assert circles(graph) == [["a", "b", "package.c"]]
