"""Where tokenizers come from.

source.py       what `read` returns
files.py        paths and folders                 huggingface.py, bpe.py, alphabet.py   tokenizer.json
ranks.py        rank files, embedded ones         tekken.py                             tekken.json
objects.py      live objects of other libraries   hub.py                                hub ids
stored.py       specs in the cache
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from toktier import embedded
from toktier.errors import InputError, InputTypeError, SourceNotFoundError
from toktier.reference import Reference
from toktier.sources.source import Source

__all__ = ["Reference", "Source", "read"]


def read(source: Any, *, pattern: Any = None, special_tokens: Any = None, name: str | None = None) -> Source:
    """Reads a tokenizer.

    Args:
      source: an embedded name ("o200k_base", "cl100k_base"); the path of a tokenizer.json, of its folder (whose
        tokenizer_config.json may add tokens), of a tekken.json or of a rank file; a hub id ("org/name"); a
        `tokenizers.Tokenizer`, a `tiktoken.Encoding` or a fast tokenizer of `transformers`.  A path wins over a hub id.
      pattern, special_tokens: for a rank file, tiktoken's `pat_str` and the ids of the special tokens.
      name: what to call it; chosen after the source if None.

    Raises:
      SourceNotFoundError: a path, name or id that leads nowhere; names the remedy.
      SourceError: a source that is damaged, contradictory or of no known kind.
      InputError, InputTypeError: an option that does not fit the source.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _named(source, pattern, special_tokens, name)
    if pattern is not None or special_tokens is not None:
        raise InputError("pattern= and special_tokens= are for rank files; an object has its own")
    from toktier.sources import objects

    if (found := objects.read(source, name)) is not None:
        return found
    raise InputTypeError(
        "source must be a name, a path, a hub id, or an object of tokenizers, tiktoken or transformers (a fast "
        f"tokenizer), not {type(source).__name__}"
    )


def _named(source: str | os.PathLike[str], pattern: Any, special_tokens: Any, name: str | None) -> Source:
    """A name, a path or a hub id."""
    from toktier.sources import files, hub, ranks

    text = os.fspath(source)
    if isinstance(source, str) and source in embedded.NAMES:
        if pattern is not None or special_tokens is not None:
            raise InputError(f"pattern= and special_tokens= are for rank files; {source} has its own")
        return ranks.read_embedded(source, name)
    path = Path(text).expanduser()
    if text and path.exists():
        return files.read(path, name, pattern, special_tokens)
    if isinstance(source, str) and hub.looks_like_id(source):
        return files.read(hub.locate(source), name or source, pattern, special_tokens)
    raise SourceNotFoundError(
        f"source={text!r} is no path here, no embedded vocabulary ({', '.join(embedded.NAMES)}) and no hub id; "
        "check the path, or give a hub id as OWNER/NAME, such as 'openai-community/gpt2'"
    )
