"""The `toktier` command.

Exit status: 0 when all went well, 1 for bad data (a message on stderr says where and what to do), 2 for wrong usage,
130 after Ctrl-C, 141 when the reader of a pipe went away.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import click

import toktier
from toktier.cli import commands, wording
from toktier.errors import ToktierError

OK, INTERRUPTED, PIPE_CLOSED = 0, 130, 141  # bad data (1) and wrong usage (2) are click's exceptions


class PipeClosed(Exception):
    """The reader of our output went away.  Not an OSError, which click would turn into status 1 by itself."""


class Commands(click.Group):
    """Every module of `toktier.cli.commands` is a subcommand of its name; it is imported when it is first needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of that name, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = importlib.import_module(f"{commands.__name__}.{cmd_name}").command
        found.name = cmd_name
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand, then flush, so that a closed pipe shows here and not at interpreter exit."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as e:
            raise PipeClosed from e
        except (ToktierError, OSError) as e:
            ran = self.get_command(ctx, ctx.invoked_subcommand or "") or self
            raise wording.DataError(wording.worded(e, ran)) from e
        return result


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(toktier.__version__)
def cli() -> None:
    """Exact BPE tokenization: the reference's own ids, from programs compiled with JAX/XLA.

    \b
    Examples:
      toktier encode README.md                        ids of a file, by the embedded o200k_base
      toktier count -t cl100k_base src/*.py           tokens a file, and their sum
      toktier encode big.txt -o ids.npy               ids as a NumPy file
      toktier encode README.md | toktier decode       and back again
      toktier inspect path/to/tokenizer.json          what it is, and which engine runs each part
    """


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the `toktier` command: runs it and ends the process with its exit status."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; errors become one readable line on stderr."""
    try:
        status = cli.main(args, prog_name="toktier", standalone_mode=False)
        return status if isinstance(status, int) else OK
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except (KeyboardInterrupt, click.Abort):
        wording.say("interrupted")
        return INTERRUPTED
    except PipeClosed:
        _silence_stdout()
        return PIPE_CLOSED


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain about the closed pipe."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
