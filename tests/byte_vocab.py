"""A reference tokenizer without merges, one token a byte, and an engine for it: what differs is what is around it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from toktier.added import AddedMatcher, Mode
from toktier.decode import byte_of_char
from toktier.encoded import Encoded
from toktier.normalize import Normalizer, load
from toktier.pipeline import Pipeline, Prepared
from toktier.spec import AddedToken, Spec


def reference(
    added: list[dict[str, Any]] | None = None, normalizer: Any = None, prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """Byte b is token b; added tokens follow from 256 on."""
    made = tokenizers.Tokenizer(models.BPE(vocab=byte_of_char(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        parts = json.loads(made.to_str())
        parts["normalizer"] = normalizer
        made = tokenizers.Tokenizer.from_str(json.dumps(parts))
    for token in added or []:
        made.add_tokens([tokenizers.AddedToken(**token)])
    return made


def spec(made: tokenizers.Tokenizer) -> Spec:
    """The spec of such a reference."""
    parts = json.loads(made.to_str())
    flags = ("content", "special", "normalized", "lstrip", "rstrip", "single_word")
    return Spec(
        name="bytes",
        reference="tokenizers",
        reference_version=tokenizers.__version__,
        token_blob=np.arange(256, dtype=np.uint8),
        token_offsets=np.arange(257, dtype=np.int64),
        merges=np.zeros((0, 3), np.int32),
        merge_rule="listed",
        ignore_merges=False,
        pretokenizer=json.dumps(parts["pre_tokenizer"]),
        normalizer=json.dumps(parts["normalizer"]),
        post_processor=json.dumps(parts["post_processor"]),
        decoder=json.dumps(parts["decoder"]),
        added=tuple(AddedToken(t["id"], **{f: t[f] for f in flags}) for t in parts["added_tokens"]),
        reason="",
    )


def pipeline(made: tokenizers.Tokenizer) -> Pipeline:
    """The steps around an engine for such a reference."""
    its = spec(made)
    normalizer: Normalizer = load(its.normalizer)
    matcher = AddedMatcher(its, normalize=normalizer.text if normalizer.kind != "none" else None)
    assert matcher.reason == ""
    return Pipeline(matcher, normalizer, bool(json.loads(its.pretokenizer)["add_prefix_space"]), repairs=False)


def run(prepared: Prepared) -> Encoded:
    """What an engine does with this vocabulary."""
    at = np.flatnonzero(prepared.buffer != 0xFF)
    return Encoded(prepared.buffer[at].astype(np.int32), at + 1)


def wanted(made: tokenizers.Tokenizer, text: str, mode: Mode = "parse") -> list[int]:
    """The reference's ids."""
    made.encode_special_tokens = mode == "text"
    return made.encode(text, add_special_tokens=False).ids
