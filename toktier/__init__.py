"""Exact BPE tokenization compiled with JAX/XLA: the ids are always those of the reference.

>>> import toktier
>>> tok = toktier.load("o200k_base")
>>> tok.encode("hello world").tolist()
[24912, 2375]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toktier.batch import Batch as Batch
    from toktier.errors import ToktierError as ToktierError
    from toktier.session import Session as Session
    from toktier.session import SessionStore as SessionStore
    from toktier.spec import Spec as Spec
    from toktier.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"

# Public names and the modules they come from.  They are imported on first use, so that `import toktier` stays quick and
# loads neither JAX nor the reference tokenizers.
_HOMES = {
    "Batch": "toktier.batch",
    "Session": "toktier.session",
    "SessionStore": "toktier.session",
    "Spec": "toktier.spec",
    "Tokenizer": "toktier.tokenizer",
    "ToktierError": "toktier.errors",
}
__all__ = ["Batch", "Session", "SessionStore", "Spec", "Tokenizer", "ToktierError", "__version__", "load"]


def load(source: Any, *, pattern: str | None = None, special_tokens: dict[str, int] | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      source: an embedded vocabulary ("o200k_base", "cl100k_base"), the path of a tokenizer.json, of the folder that
        holds one, of a tiktoken rank file or of a tekken.json, a hub id, or an object of `tokenizers`, `tiktoken` or
        `transformers`.
      pattern: for a rank file, the regex that cuts the text into pieces.
      special_tokens: for a rank file, the special tokens and their ids.

    Returns:
      the Tokenizer.

    Raises:
      SourceNotFoundError: the path, name or id leads nowhere; the message names the remedy.
      SourceError: the source is damaged, contradictory, or of no known kind.

    >>> load("cl100k_base").encode("hello world").tolist()
    [15339, 1917]
    """
    from toktier import sources
    from toktier.tokenizer import Tokenizer

    return Tokenizer(sources.read(source, pattern=pattern, special_tokens=special_tokens))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'toktier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
