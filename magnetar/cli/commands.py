"""Groups of commands whose modules are imported when one is called, or when help lists them.

So `magnetar serve` starts without what the other commands need.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class Commands(click.Group):
    """A group; alone it shows its help. Its commands are objects or named by where they are."""

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """`places`: `module:attribute` by the command's name, in the order that help shows."""
        kwargs.setdefault("no_args_is_help", False)
        super().__init__(*args, **kwargs)
        self._places = dict(places or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and (place := self._places.get(cmd_name)) is not None:
            module, _, attribute = place.partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command), place
            found = command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            # Costs 5 ms to import, which commands that exist need not pay.
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)
