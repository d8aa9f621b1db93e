"""A command group made from a registry of modules: each module's `command` function is one command, imported when
used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup


def group(registry: Mapping[str, str], help: str, *options: Callable[..., Any]) -> typer.Typer:
    """A Typer whose commands are `registry`'s names; name -> module with a `command` function.

    options: what every command gets in addition, such as `options.with_plugins`.
    """

    class Registered(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(registry)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in registry:
                return None
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            command = importlib.import_module(registry[cmd_name]).command
            for more in options:
                command = more(command)
            single.command(cmd_name)(command)
            return typer.main.get_command(single)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] not in registry and not ctx.resilient_parsing:  # a shell completing is told nothing
                from mmctl.errors import UsageError, nearest

                raise UsageError(f'"{args[0]}": no such command{nearest(args[0], registry, "commands")}')
            return super().resolve_command(ctx, args)

    made = typer.Typer(cls=Registered, help=help, no_args_is_help=True, rich_markup_mode=None)
    made.callback()(lambda: None)  # a Typer without commands of its own is no group otherwise
    return made
