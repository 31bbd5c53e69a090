"""Tokenizers, references and clients for the tests of the tier."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import families
import numpy as np
import tokenizers
from test_missing import lacking

import toktier
from toktier.tier import Answer, Thresholds

# a BOS; NFC; cuts nearly everywhere; pieces inside characters; bytes that are no token, once with a space in front of a
# text, so that no session of it is repaired; and one that the reference alone can run
FAMILIES = ("llama3", "qwen3", "gptoss", "falcon", "lacking gpt2", "lacking roberta", "sentencepiece")
ON_DEVICE = ("llama3", "qwen3", "gptoss")  # of one band: they share a program
SMALL = Thresholds(64, 16)  # so that short texts reach the device, in its smallest buffer


@functools.cache
def native(name: str) -> tokenizers.Tokenizer:
    """The reference."""
    if name.startswith("lacking "):
        return tokenizers.Tokenizer.from_str(lacking(name.removeprefix("lacking ")))
    return _sentencepiece() if name == "sentencepiece" else families.tokenizer(name)


@functools.cache
def load(name: str) -> toktier.Tokenizer:
    """The tokenizer of a family; with its smallest device program compiled for those of ON_DEVICE."""
    tok = toktier.load(native(name))
    if name in ON_DEVICE:
        tok.core.device.warmup([100])
    return tok


def want(name: str, text: str, framed: bool = False) -> list[int]:
    """The ids that are right."""
    return native(name).encode(text, add_special_tokens=framed).ids


def _sentencepiece() -> tokenizers.Tokenizer:
    """Character BPE with byte fallback behind a Metaspace, as Llama 2 has it: only the reference runs it."""
    model = tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *(f"<0x{b:02X}>" for b in range(256))], show_progress=False
    )
    made.train_from_iterator(families.texts().values(), trainer)
    return made


class Client:
    """What a client of a session keeps: its text, and ids kept by patches alone."""

    def __init__(self, name: str, change: Callable[..., Answer], session: str) -> None:
        self.name, self.change, self.session = name, change, session
        self.text, self.ids = "", np.zeros(0, np.int32)

    def took(self, answer: Answer, text: str, framed: bool = False) -> Answer:
        """Check an answer against the reference and against what its patch makes of the client's ids."""
        patch = answer.patch
        assert patch is not None
        self.ids = np.concatenate([self.ids[: patch.start], patch.ids, self.ids[patch.start + patch.removed :]])
        assert self.ids.tolist() == answer.ids.tolist() == want(self.name, text, framed), self.name
        assert not answer.ids.flags.writeable
        self.text = text
        return answer


def totals(stats: dict[str, Any]) -> dict[str, int]:
    """Sums of a tier's counts over the paths."""
    paths = stats["paths"].values()
    return {name: sum(p[name] for p in paths) for name in ("requests", "served_bytes", "scanned_bytes")}
