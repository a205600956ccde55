"""Whether `magnetar serve` takes what a package starts it with."""

from __future__ import annotations

from collections.abc import Sequence

import click

from magnetar.cli.main import main
from magnetar.config.load import Given, load


def served_with(arguments: Sequence[str]) -> None:
    """Check that `magnetar serve` takes these arguments, and that its settings are known."""
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    context = serve.make_context("serve", list(arguments))
    given = [
        Given(name, value, "--set")
        for name, _, value in (each.partition("=") for each in context.params["assignments"])
    ]
    assert load(given).warnings == []
