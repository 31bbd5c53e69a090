"""Objects of `tokenizers`, `tiktoken` and `transformers`, known by what they have, so that none of them is imported."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from toktier.errors import SourceError
from toktier.reference import TokenizerFile, unpanicked
from toktier.sources import huggingface, ranks, stored
from toktier.sources.source import Source
from toktier.spec import AddedToken


def read(value: Any, name: str | None) -> Source | None:
    """The source of an object, or None where it is of no known kind.

    Raises:
      SourceError: the object is damaged, or does not survive being written and read by its own library.
    """
    if all(hasattr(value, field) for field in ("_pat_str", "_mergeable_ranks", "_special_tokens")):
        title = name or str(getattr(value, "name", "tiktoken"))
        return Source(ranks.spec(title, value._mergeable_ranks, value._pat_str, dict(value._special_tokens)))
    if (backend := getattr(value, "backend_tokenizer", None)) is not None:
        # A `transformers` tokenizer sets truncation and padding at each call, and leaves them behind on its backend.
        return _tokenizer(backend, name or str(getattr(value, "name_or_path", "") or "transformers"), neither=True)
    inner = getattr(value, "_tokenizer", value)  # the wrappers in tokenizers.implementations
    if type(inner).__module__.split(".")[0] == "tokenizers" and hasattr(inner, "to_str"):
        return _tokenizer(inner, name or "tokenizers", neither=False)
    return None


def _tokenizer(value: Any, name: str, neither: bool) -> Source:
    """A `tokenizers.Tokenizer`; `neither`: without truncation and padding."""
    if not hasattr(value, "to_str"):
        value = getattr(value, "_tokenizer", value)
    try:
        text = unpanicked(value.to_str)
    except Exception as e:
        raise SourceError(f"{name}: `tokenizers` cannot write it ({e}), for example because a part is in Python") from e
    live = {t: AddedToken(i, t.content, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
            for i, t in value.get_added_tokens_decoder().items()}  # fmt: skip
    if neither and (value.truncation is not None or value.padding is not None):
        text = json.dumps({**json.loads(text), "truncation": None, "padding": None}, ensure_ascii=False)
    content = text.encode()
    recipe = TokenizerFile(None, hashlib.sha256(content).hexdigest(), text)
    at = stored.key("tokenizers", "json", content)
    spec = stored.load_or_make(name, at, lambda: huggingface.spec(json.loads(text), name, name, recipe))
    if set(spec.added) != set(live.values()):
        odd = min(set(spec.added) ^ set(live.values()))
        raise SourceError(
            f"{name}: `tokenizers` does not read back what it writes of this object (added token {odd.content!r}, id "
            f"{odd.id}); save it, load the file with Tokenizer.from_file, and pass that"
        )
    return Source(spec, recipe)
