"""Vocabulary and merges of a tokenizer.json, in bulk, with the place of whatever is wrong."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, NoReturn

import numpy as np

from toktier.errors import SourceError
from toktier.sources.ranks import ID_LIMIT


class Merges(NamedTuple):
    """Merges as ids in rank order, int32[M, 3]: left, right, product."""

    rows: np.ndarray

    def among(self, ids: np.ndarray) -> np.ndarray:
        """The merges whose parts are all among these ids (the others never come about)."""
        top = int(self.rows.max(initial=-1)) + 1
        known = np.zeros(max(top, int(ids.max(initial=-1)) + 1), bool)
        known[ids] = True
        return self.rows if known[self.rows].all() else self.rows[known[self.rows].all(1)]


def read_vocabulary(model: dict[str, Any], where: str) -> dict[str, int]:
    """Ids by token, as written.

    Raises:
      SourceError: an entry that is no id, or an id that two tokens have.
    """
    vocab = model.get("vocab")
    if isinstance(vocab, list):  # Unigram: pairs of token and score
        tokens = [entry[0] if isinstance(entry, list) and entry else entry for entry in vocab]
        if not all(isinstance(token, str) for token in tokens):
            raise SourceError(f"{where}: key 'model.vocab' is no list of pairs of token and score")
        vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if not isinstance(vocab, dict):
        raise SourceError(f"{where}: key 'model.vocab' is missing or no object; the file is no whole tokenizer.json")
    if not set(map(type, vocab.values())) <= {int} or not all(0 <= i < ID_LIMIT for i in vocab.values()):
        bad = next(t for t, i in vocab.items() if type(i) is not int or not 0 <= i < ID_LIMIT)
        raise SourceError(f"{where}: model.vocab[{bad!r}] is {vocab[bad]!r}, which is no id from 0 to {ID_LIMIT - 1}")
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for token, i in vocab.items():
            if i in seen:
                raise SourceError(
                    f"{where}: model.vocab gives the id {i} to {seen[i]!r} and to {token!r}; get the file anew, "
                    "or give one of them an id of its own"
                )
            seen[i] = token
    try:
        "".join(vocab).encode()
    except UnicodeEncodeError as e:
        raise SourceError(f"{where}: model.vocab holds a token with half a surrogate pair ({e.reason})") from e
    return vocab


def read_merges(model: dict[str, Any], ids: dict[str, int], where: str, check_products: bool = True) -> Merges | None:
    """The merges, each pair at its last place in the list, as `tokenizers` keeps them.

    Args:
      check_products: False where products are not just the parts put together (then only the parts are checked).

    Returns:
      the merges, or None without `check_products`.

    Raises:
      SourceError: a merge that is no pair, or whose parts or product are not in the vocabulary.
    """
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise SourceError(f"{where}: key 'model.merges' is missing or no list; the file is no whole tokenizer.json")
    kinds = set(map(type, merges))
    if not kinds <= {str} and not kinds <= {list}:
        raise SourceError(
            f"{where}: model.merges mixes {' and '.join(sorted(k.__name__ for k in kinds))}; use pairs in lists"
        )
    if kinds == {str}:
        merges = [merge for merge in merges if not merge.startswith("#version")]
        pairs = [merge.split(" ") for merge in merges]
    else:
        pairs = merges
    if not set(map(len, pairs)) <= {2}:
        k = next(k for k, pair in enumerate(pairs) if len(pair) != 2)
        raise SourceError(f"{where}: model.merges[{k}] is {merges[k]!r}, which is no pair of tokens")
    try:
        left = [ids[a] for a, _ in pairs]
        right = [ids[b] for _, b in pairs]
        product = [ids[a + b] for a, b in pairs] if check_products else []
    except (KeyError, TypeError):
        _complain(pairs, ids, where, check_products)
    if not check_products:
        return None
    rows = np.empty((len(pairs), 3), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2] = left, right, product
    keys = rows[:, 0].astype(np.int64) << 32 | rows[:, 1]
    if len(set(keys.tolist())) != len(rows):
        _, last = np.unique(keys[::-1], return_index=True)
        rows = rows[np.sort(len(rows) - 1 - last)]
    return Merges(rows)


def _complain(pairs: list[Any], ids: dict[str, int], where: str, check_products: bool) -> NoReturn:
    """Raises for the first merge that names what is not in the vocabulary."""
    for k, (a, b) in enumerate(pairs):
        if not isinstance(a, str) or not isinstance(b, str):
            raise SourceError(f"{where}: model.merges[{k}] is {[a, b]!r}, which is no pair of tokens")
        for token in (a, b, a + b) if check_products else (a, b):
            if token not in ids:
                raise SourceError(
                    f"{where}: model.merges[{k}] {a!r} + {b!r} names {token!r}, which is not in model.vocab; "
                    "vocabulary and merges are not from the same tokenizer, or the file is damaged: get it anew"
                )
    raise SourceError(f"{where}: model.merges cannot be read")


def why_not_bytes(model: dict[str, Any], pre_tokenizer: Any) -> str:
    """Why this BPE is not byte-level BPE, or ""."""
    if model.get("dropout"):
        return f"the model drops merges at random (dropout {model['dropout']})"
    for field in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            return f"the model marks parts of words ({field} {model[field]!r})"
    steps = list(_steps(pre_tokenizer))
    if "ByteLevel" not in steps:
        also = " (byte_fallback, as SentencePiece has it)" if model.get("byte_fallback") else ""
        return f"the pre-tokenizer has no ByteLevel step, so that the model reads characters and not bytes{also}"
    if steps.count("ByteLevel") > 1:
        return "the pre-tokenizer has two ByteLevel steps"
    return ""


def _steps(part: Any) -> list[str]:
    """The types of all steps of a pre-tokenizer, in order."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return list(itertools.chain.from_iterable(map(_steps, part["pretokenizers"])))
    return [part["type"]]
