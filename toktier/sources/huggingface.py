"""tokenizer.json to a spec.

The parts around the vocabulary are checked and put into canonical form by `tokenizers` itself, on a shell of the
tokenizer without its vocabulary (milliseconds).  Vocabulary and merges are read here, in bulk; what `tokenizers` would
refuse is refused, with its place.  A tokenizer that is not byte-level BPE gets a `reason`, and is built once to
see that it can be.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toktier.errors import SourceError
from toktier.missing import NEVER
from toktier.reference import ExtraToken, TokenizerFile, unpanicked
from toktier.sources import alphabet, stored
from toktier.sources.bpe import Merges, read_merges, read_vocabulary, why_not_bytes
from toktier.spec import MAX_IDS, AddedToken, Spec

_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


class _Shell(NamedTuple):
    """Canonical parts of a tokenizer, as JSON values."""

    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any
    decoder: Any


def spec(value: dict[str, Any], where: str, name: str, recipe: TokenizerFile) -> Spec:
    """The spec of a parsed tokenizer.json.

    Args:
      value: the JSON object.
      where: what messages call it.
      name: the spec's name.
      recipe: how the reference is made; its extra tokens are part of the spec.

    Raises:
      SourceError: `tokenizers` would refuse it, or ids contradict each other.
    """
    model = value.get("model")
    if not isinstance(model, dict):
        raise SourceError(f"{where}: key 'model' is missing or no object; this is no whole tokenizer.json")
    shell = _shell(value, where)
    ids = read_vocabulary(model, where)
    kind = _kind(model)
    reason = f"the model is {kind}, not BPE" if kind != "BPE" else why_not_bytes(model, shell.pre_tokenizer)
    reason = reason or _cut_or_padded(value)
    tokens = list(ids)
    values = np.fromiter(ids.values(), np.int64, len(ids))
    raw, offsets, ok = alphabet.read(tokens)
    added, twice = added_tokens(value.get("added_tokens") or [], recipe.extra, ids)
    reason = reason or twice or _unknown_byte(ids, model)
    n_ids = int(values.max(initial=-1)) + 1
    if max([n_ids, *(t.id + 1 for t in added)]) > MAX_IDS:
        reason = reason or f"there are ids that are not below {MAX_IDS}"
    merges: Merges | None = None
    if kind == "BPE":
        merges = read_merges(model, ids, where, check_products=not model.get("continuing_subword_prefix"))
    if reason:
        recipe.build()  # what nothing but the reference can read, it must be able to read
    blob = raw.tobytes()
    ends = offsets.tolist()
    listed = [blob[a:b] for a, b in itertools.pairwise(ends)]
    literals = {t.content for t in added}
    unwritten = []
    for k in np.flatnonzero(~ok).tolist():
        # The byte-level decoder writes such a token as it is; in a text it is never met, so an engine must not see it.
        listed[k] = tokens[k].encode() if reason else b""
        if not reason and tokens[k] not in literals:
            unwritten.append((ids[tokens[k]], tokens[k]))
    by_id, by_id_offsets = alphabet.by_id(listed, values, n_ids)
    return Spec(
        name=name,
        reference="tokenizers",
        reference_version=stored.version("tokenizers"),
        token_blob=by_id,
        token_offsets=by_id_offsets,
        merges=np.zeros((0, 3), np.int32) if reason or merges is None else merges.among(values[ok]),
        merge_rule="listed",
        ignore_merges=bool(model.get("ignore_merges")),
        pretokenizer=_canonical(shell.pre_tokenizer),
        normalizer=_canonical(shell.normalizer),
        post_processor=_canonical(shell.post_processor),
        decoder=_canonical(shell.decoder),
        added=added,
        reason=reason,
        source_digest=recipe.sha256 if reason else "",
        unwritten=tuple(unwritten),
    )


def added_tokens(
    listed: Sequence[dict[str, Any]], extra: Sequence[ExtraToken], ids: dict[str, int]
) -> tuple[tuple[AddedToken, ...], str]:
    """Added tokens with the ids that `tokenizers` gives them: the model's own, or else the next behind all others.

    The ids that a file states are not asked; `tokenizers` only warns where they differ.

    Returns:
      the tokens in order of addition, and the reason if one is listed with two sets of flags: the reference then finds
      it by the first and treats it by the last.
    """
    found: dict[str, AddedToken] = {}
    top = -1  # the highest id among the added tokens
    wanted = [(t["content"], *(t[flag] for flag in _FLAGS)) for t in listed]
    there = {content for content, *_ in wanted}
    wanted += [
        (t.content, *(getattr(t, flag) for flag in _FLAGS)) for t in extra if not (t.only_if_new and t.content in there)
    ]
    for content, *flags in wanted:
        if not content:
            continue
        if (known := found.get(content)) is not None:
            if known[2:] != tuple(flags):
                return tuple(found.values()), f"the added token {content!r} is listed twice, with different flags"
            continue
        chosen = ids.get(content)
        if chosen is None:
            chosen = top + 1 if top >= len(ids) or not ids else len(ids)
        top = max(top, chosen)
        found[content] = AddedToken(chosen, content, *flags)
    if len({t.id for t in found.values()}) != len(found):
        return tuple(found.values()), "two added tokens have the same id"
    return tuple(found.values()), ""


def _shell(value: dict[str, Any], where: str) -> _Shell:
    """The parts around the vocabulary, as `tokenizers` reads and writes them."""
    import tokenizers

    empty = {"type": "BPE", "vocab": {}, "merges": []}
    model = value["model"]
    if _kind(model) == "BPE":
        empty = {**model, **empty}
    try:
        made = unpanicked(lambda: tokenizers.Tokenizer.from_str(json.dumps({**value, "model": empty})))
    except Exception as e:
        raise SourceError(f"{where}: `tokenizers` refuses it: {e}") from e
    parts = json.loads(made.to_str())
    return _Shell(*(parts[field] for field in _Shell._fields))


def _kind(model: dict[str, Any]) -> str:
    """The model's type; files that are older than the key are read as `tokenizers` reads them."""
    if isinstance(model.get("type"), str):
        return model["type"]
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece or WordLevel"


def _cut_or_padded(value: dict[str, Any]) -> str:
    if (cut := value.get("truncation")) is not None:
        return f"the file cuts what it encodes to {cut.get('max_length')} ids (key 'truncation')"
    if value.get("padding") is not None:
        return "the file pads what it encodes (key 'padding')"
    return ""


def _unknown_byte(ids: dict[str, int], model: dict[str, Any]) -> str:
    """Why a byte without a token keeps the engines from running this model: the reference writes something for it.

    Without an unknown token such a byte is left out, and only texts that hold one need the reference (missing.py).
    """
    if model.get("unk_token") is None and not model.get("byte_fallback"):
        return ""
    for byte in range(256):
        if byte not in NEVER and alphabet.written(bytes([byte])) not in ids:
            return f"the byte 0x{byte:02X} is no token, and becomes the unknown token {model.get('unk_token')!r}"
    return ""


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
