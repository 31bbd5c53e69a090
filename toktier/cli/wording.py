"""What went wrong, in the words of the command line: the one place where messages of the library are translated.

The library names arguments of its functions (special_tokens='parse'); who runs a command has options (--special-tokens
parse).  Those of the command that ran are looked up, so a new option needs nothing here.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shlex

import click

_QUOTED = r"'(?:[^'\\\n]|\\.)*'" + r'|"(?:[^"\\\n]|\\.)*"'
# A quotation is passed over, for it holds the user's own words; an argument stands by itself, not within a path.
_ARGUMENT = re.compile(
    rf"(?<!\w)(?:{_QUOTED})|(?<![^\s(,;])(?P<name>[a-z_]+)=(?P<value>{_QUOTED}|True|-?\d+|\{{[^{{}}]*\}})?(?=[\s:;,.)]|$)"
)
_OF_RANK_FILES = ("pattern", "special_tokens_file")
_WAYS_OUT = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name the files in it",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "name a file elsewhere",
    errno.ENOSPC: "make room there (temporary files are in $TMPDIR)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


class DataError(click.ClickException):
    """Bad data: one line on stderr, status 1."""

    def show(self, file: object = None) -> None:
        """Print it as every message of the command line is printed."""
        say(self.message)


def say(message: str) -> None:
    """A line on stderr."""
    click.echo(f"toktier: {message}", err=True)


def worded(error: Exception, command: click.Command) -> str:
    """The message of an error that ended a command, or a part of its work; an OSError is given its way out."""
    from toktier.errors import ToktierError

    if isinstance(error, ToktierError) or not isinstance(error, OSError):
        return translated(str(error), command)
    if not error.strerror:
        return str(error)
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    said = error.strerror == os.strerror(error.errno or 0)  # else it has words of its own
    way_out = f"; {_WAYS_OUT[error.errno]}" if said and error.errno in _WAYS_OUT else ""
    return f"{where}{error.strerror}{way_out}"


def translated(message: str, command: click.Command) -> str:
    """The message with options of the command in place of arguments; those that are no option stay as they are."""
    options = {p.name: _shown(p) for p in command.params if p.name}
    lacking = False

    def option(found: re.Match[str]) -> str:
        nonlocal lacking
        name, value = found["name"], found["value"]
        if name == "special_tokens" and (value is None or value.startswith("{")):
            name = "special_tokens_file"  # the mode is a word
        if name not in options:
            lacking = lacking or name in _OF_RANK_FILES
            return found[0]
        if value is None or value == "True":
            return options[name]
        if value.startswith("{"):
            return f"{options[name]} FILE with the JSON object {value.replace(', ...', '')}"
        return f"{options[name]} {shlex.quote(str(ast.literal_eval(value)))}"

    told = _ARGUMENT.sub(option, message)
    return f"{told}; toktier.load takes this, `toktier {command.name}` has no option for it" if lacking else told


def _shown(param: click.Parameter) -> str:
    """`--tokenizer`, or what the help calls an argument."""
    return (
        max(param.opts, key=len)
        if isinstance(param, click.Option)
        else param.make_metavar(click.Context(click.Command("")))
    )
