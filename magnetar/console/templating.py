"""Templates: where they are, and the words that they have for values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from magnetar import __version__
from magnetar.client.readable import count, duration, known, moment, printable, size


@lru_cache(maxsize=64)
def environment(root: str = "") -> Environment:
    """Return the environment of all templates: every value is escaped, none may be missing.

    Characters of a value that cannot be seen are written as escapes too. What a form sends back is
    `|exact`.

    `root` is where the pages of a cluster begin: what `link` puts before each address.
    """
    found = Environment(
        loader=PackageLoader("magnetar.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "count": count,
        "known": known,
        "named": named,
        "duration": duration,
        "moment": moment,
        "size": size,
        "as_json": _as_json,
        "exact": Markup.escape,
    }

    def rooted(path: str, **query: object) -> str:
        return root + link(path, **query)

    found.globals |= {"link": rooted, "version": __version__}
    return found


def render(template: str, values: Mapping[str, Any], root: str = "") -> str:
    return environment(root).get_template(template).render(values)


def link(path: str, **query: object) -> str:
    """Return an address in a cluster; a query's values that are None or empty are left out.

    An empty `id` stays: a group may have it.
    """
    wanted = [
        f"{name}={_quoted(str(value))}"
        for name, value in query.items()
        if value is not None and (value != "" or name == "id")
    ]
    return f"{path}?{'&'.join(wanted)}" if wanted else path


def named(group_id: str) -> str:
    """Return what a page calls a group: the broker allows an empty id, which cannot be seen."""
    return group_id or "(empty)"


#: A page has hundreds of links, to the same few names.
_quoted = lru_cache(maxsize=4096)(quote_plus)


def _as_json(value: object) -> Markup:
    """Return a value for an attribute, which a script of ours reads."""
    return Markup.escape(json.dumps(value, separators=(",", ":")))


def _printable(value: object) -> object:
    # Markup is what a macro or a filter has made, of values that have been here.
    return printable(value) if type(value) is str else value
