"""Honest symbols: every code point behaves as the representative of its symbol, asked of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toktier.pretok.blackbox import Blackbox, TokenizersBlackbox
from toktier.pretok.failure import LearnError
from toktier.pretok.learn import Bimachine, Word

_CHUNK = 1 << 15


def inner_masks(form: Any, box: Blackbox, characters: str) -> np.ndarray:
    """uint8[k]: bit j of entry i is set where byte j of `characters[i]`, alone in a text, starts a piece.

    Only a splitter behind ByteLevel, which sees bytes as characters, can cut inside one; all 0 otherwise.
    """
    masks = np.zeros(len(characters), np.uint8)
    kinds = [step["type"] for step in form or []] if isinstance(form, list) else []
    if "ByteLevel" not in kinds[:-1]:
        return masks
    import json

    import tokenizers

    assert isinstance(box, TokenizersBlackbox)
    config = {"version": "1.0", "pre_tokenizer": box.pre_tokenizer, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    split = tokenizers.Tokenizer.from_str(json.dumps(config)).pre_tokenizer.pre_tokenize_str
    for i, character in enumerate(characters):
        lengths = [len(piece) for piece, _ in split(character)]
        if sum(lengths) not in (0, len(character.encode())):
            raise LearnError(f"pretokenizer: part of the character {character!r} is dropped")
        masks[i] = sum(1 << at for at in np.cumsum(lengths)[:-1].tolist())
    return masks


def contexts(machine: Bimachine) -> list[tuple[Word, Word, bool]]:
    """(in front, behind, doubled) whose marks tell all symbols of the machine apart, few and short ones.

    The last entries double the character: in front of itself, behind the context's word.
    """
    n = machine.n_symbols
    symbols = np.arange(n, dtype=np.uint8)[:, None]
    pairs = [(u, v) for u in machine.left_words for v in machine.right_words]
    pairs += [(u, t) for u in machine.left_words for t in machine.left_tests]
    pairs += [(t, v) for t in machine.right_tests for v in machine.right_words]
    pairs = sorted(dict.fromkeys(pairs), key=lambda p: (len(p[0]) + len(p[1]), p))
    answers = [[row.tobytes() for row in machine.marks(_around(u, symbols, v))] for u, v in pairs]
    chosen: list[tuple[Word, Word, bool]] = []
    groups = [0] * n
    while True:
        best, best_groups = -1, groups
        for k, answer in enumerate(answers):
            number: dict[tuple[int, bytes], int] = {}
            split = [number.setdefault((g, a), len(number)) for g, a in zip(groups, answer, strict=True)]
            if len(set(split)) > len(set(best_groups)):
                best, best_groups = k, split
        if best < 0:
            break
        chosen.append((*pairs[best], False))
        groups = best_groups
    longest = max(machine.left_words, key=len)
    return [*(chosen or [(b"", b"", False)]), (b"", b"", True), (longest, b"", True)]


def dishonest_points(
    box: Blackbox,
    machine: Bimachine,
    representatives: str,
    label: np.ndarray,
    inner: np.ndarray,
    limit: int | None,
    progress: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, int]:
    """Code points that the reference marks unlike the machine in some context: (int64[k], number of texts asked).

    `label: [0x110000]` symbols, `inner: uint8[S]`.  `limit`: how many contexts; None for all of `contexts`.
    """
    points = np.arange(0x110000)
    points = points[(points < 0xD800) | (points >= 0xE000)]
    of_symbol = np.array([ord(c) for c in representatives], np.uint32)
    odd = np.zeros(0x110000, bool)
    asked = 0
    for number, (front, back, doubled) in enumerate(contexts(machine)[:limit]):
        if progress:
            progress(f"code points, context {number + 1}")
        for at in range(0, len(points), _CHUNK):
            part = points[at : at + _CHUNK]
            middle = label[part].astype(np.uint8)[:, None]
            words = _around(front, np.repeat(middle, 2, axis=1) if doubled else middle, back)
            texts = of_symbol[words]
            texts[:, len(front) : words.shape[1] - len(back)] = part[:, None]
            claim = machine.marks(words)
            truth = box.marks(texts, claim)
            odd[part[(truth != claim).any(axis=1)]] = True
            asked += len(part)
    if inner.any():
        odd[_dishonest_inner(box, label, inner, points)] = True
    return np.flatnonzero(odd), asked


def _around(front: Word, middle: np.ndarray, back: Word) -> np.ndarray:
    rows = len(middle)
    fronts = np.broadcast_to(np.frombuffer(front, np.uint8), (rows, len(front)))
    backs = np.broadcast_to(np.frombuffer(back, np.uint8), (rows, len(back)))
    return np.concatenate([fronts, middle, backs], axis=1)


def _dishonest_inner(box: Blackbox, label: np.ndarray, inner: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Code points whose number of pieces that begin inside the character is not their mask's, between four neighbours."""
    assert isinstance(box, TokenizersBlackbox)
    wrong = np.zeros(0x110000, bool)
    bits = np.array([int(m).bit_count() for m in inner])[label]
    for front, back in (("", ""), ("a", "a"), ("1", "2"), (".", " ")):
        for at in range(0, len(points), 4096):
            part = points[at : at + 4096]
            texts = np.full((len(part), len(front) + len(back) + 2), 0xE001, np.uint32)
            texts[:, : len(front)] = [ord(c) for c in front]
            texts[:, len(front)] = part
            texts[:, len(front) + 1 : -1] = [ord(c) for c in back]
            separator = "\ue001"
            if (part == ord(separator)).any():
                continue
            spans = box.spans(texts.tobytes().decode("utf-32-le"), separator)
            reached = np.maximum.accumulate(np.append(0, spans[:-1, 1]))
            count = np.bincount(spans[spans[:, 0] < reached, 0], minlength=texts.size).reshape(texts.shape)
            wrong[part[count[:, len(front)] != bits[part]]] = True
    return np.flatnonzero(wrong)
