"""The typed errors of toktier.

Each derives from `ToktierError` and from the built-in exception a caller would expect, so `except ValueError` works.
A message names the argument, the value or offset, and the way out.
"""


class ToktierError(Exception):
    """Base of every error that toktier raises on purpose."""


class InputError(ToktierError, ValueError):
    """A value that cannot be encoded, decoded or edited: a lone surrogate, an unknown id, an offset out of range."""


class InputTypeError(ToktierError, TypeError):
    """An argument of the wrong type, such as bytes or None for text."""


class SpecialTokenError(InputError):
    """The text holds a special token and `special_tokens="forbid"` is in force.

    Attributes:
      literal: the special token as it is written.
    """

    def __init__(self, message: str, literal: str = "") -> None:
        super().__init__(message)
        self.literal = literal


class SourceError(ToktierError, ValueError):
    """A tokenizer source that is missing, damaged, contradictory or of no known kind."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A path, name or hub id that leads nowhere."""


class EngineError(ToktierError, RuntimeError):
    """The engine asked for by name cannot run this tokenizer or this input."""


class MissingExtraError(ToktierError, ImportError):
    """A part that needs an optional package which is not installed; the message has the command that installs it."""


class SessionError(ToktierError, RuntimeError):
    """A session or a stored record that cannot be used, such as one that another process changed meanwhile."""


class SessionClosedError(SessionError):
    """A session that was closed, or dropped by its store, is used again."""


class TextNotKeptError(SessionError):
    """A session opened with `keep_text=False` is asked for what only its text could tell."""


class RecordError(SessionError, ValueError):
    """A stored session that is truncated, damaged, of another version or of another tokenizer."""


class CorpusError(ToktierError, RuntimeError):
    """A corpus run that cannot begin or go on: another run's folder, a changed input, a full disk, a dying worker."""
