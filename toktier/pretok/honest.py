"""Honest symbols: every code point behaves as the representative of its symbol, asked of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toktier.pretok.blackbox import Blackbox, TokenizersBlackbox
from toktier.pretok.failure import LearnError
from toktier.pretok.learn import Bimachine, Word
from toktier.pretok.verify import random_words

_CHUNK = 1 << 15
_SAMPLE = 4096  # code points of each symbol, where the check is not thorough


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


def telling_contexts(machine: Bimachine) -> list[tuple[Word, Word, list[int]]]:
    """(in front, behind, symbols): for each symbol x contexts enough to tell it from every other symbol.

    In one of its contexts, any symbol y != x would get marks other than x gets, on itself or on the context.
    """
    n = machine.n_symbols
    symbols = np.arange(n, dtype=np.uint8)[:, None]
    pairs = [(u, v) for u in machine.left_words for v in machine.right_words]
    pairs += [(u, t) for u in machine.left_words for t in machine.left_tests]
    pairs += [(t, v) for t in machine.right_tests for v in machine.right_words]
    pairs = sorted(dict.fromkeys(pairs), key=lambda p: (len(p[0]) + len(p[1]), p))
    answer = np.array(
        [np.unique(machine.marks(_around(u, symbols, v)), axis=0, return_inverse=True)[1].ravel() for u, v in pairs]
    )
    used: dict[int, list[int]] = {}
    for x in range(n):
        differs = answer != answer[:, x : x + 1]  # [context, symbol]
        open_ = np.arange(n) != x
        while open_.any():
            gain = (differs & open_).sum(axis=1)
            best = max(range(len(pairs)), key=lambda k: (gain[k], k in used, -k))
            if not gain[best]:
                break  # only where all marks and transitions agree: kept apart by `inner` alone
            used.setdefault(best, []).append(x)
            open_ &= ~differs[best]
    return [(*pairs[k], xs) for k, xs in sorted(used.items())]


class HonestCheck:
    """Compares every code point with the representative of its symbol, in the reference `box`.

    `label: [0x110000]` symbols, `inner: uint8[S]`.  `asked` counts texts.
    """

    def __init__(
        self, box: Blackbox, machine: Bimachine, representatives: str, label: np.ndarray, inner: np.ndarray
    ) -> None:
        self._box, self._machine, self._inner = box, machine, inner
        self._label = label.astype(np.uint8)
        self._of_symbol = np.array([ord(c) for c in representatives], np.uint32)
        points = np.arange(0x110000, dtype=np.uint32)
        self._points = points[(points < 0xD800) | (points >= 0xE000)]
        self._members = [self._points[self._label[self._points] == x] for x in range(machine.n_symbols)]
        self._odd = np.zeros(0x110000, bool)
        self.asked = 0

    def odd_points(self, thorough: bool, progress: Callable[[str], None] | None = None) -> np.ndarray:
        """Code points (int64[k]) found to behave unlike their representative; none where all are honest.

        In random words, all characters of which are drawn from the symbols' members: a sample of each symbol's, or,
        `thorough`, every code point twice, and then in every telling context of its symbol.
        """
        say = progress or (lambda text: None)
        for turn in range(2 if thorough else 1):
            say(f"code points in random words, turn {turn + 1}")
            self._random_words(np.random.default_rng(turn), None if thorough else _SAMPLE)
        for front, back, symbols in telling_contexts(self._machine) if thorough else []:
            say("code points in telling contexts")
            part = np.concatenate([self._members[x] for x in symbols])
            for at in range(0, len(part), _CHUNK):
                points = part[at : at + _CHUNK]
                words = _around(front, self._label[points][:, None], back)
                texts = self._of_symbol[words]
                texts[:, len(front)] = points
                self._compare(words, texts, points)
        if self._inner.any():
            self._check_inner(None if thorough else _SAMPLE)
        return np.flatnonzero(self._odd)

    def _random_words(self, rng: np.random.Generator, limit: int | None) -> None:
        length = 32
        for x, members in enumerate(self._members):
            order = rng.permutation(members)[:limit]
            at = 0
            while at < len(order):
                words = random_words(self._machine.n_symbols, rng, min(2048, 8 + len(order) // 8), length)
                words[rng.random(words.shape) < rng.random((len(words), 1))] = x
                texts = np.empty(words.shape, np.uint32)
                for y, others in enumerate(self._members):
                    where = words == y
                    texts[where] = others[rng.integers(0, len(others), int(where.sum()))]
                where = words == x
                count = int(where.sum())
                texts[where] = np.resize(order[at : at + count], count)
                at += count
                self._compare(words, texts, None)

    def _compare(self, words: np.ndarray, texts: np.ndarray, points: np.ndarray | None) -> None:
        claim = self._machine.marks(words)
        wrong = (self._box.marks(texts, claim) != claim).any(axis=1)
        self.asked += len(words)
        if not wrong.any():
            return
        if points is not None:
            self._odd[points[wrong]] = True
            return
        for row in np.flatnonzero(wrong)[:50]:
            self._odd[self._culprits(words[row], texts[row])] = True

    def _culprits(self, word: np.ndarray, text: np.ndarray) -> np.ndarray:
        """The characters of a wrong text that make it wrong: those that, replaced by representatives, mend it."""
        plain = self._of_symbol[word]
        known = np.flatnonzero(text != plain)
        claim = self._machine.marks(word[None])[0]
        alone = np.repeat(plain[None], len(known), axis=0)  # one strange character in a plain text
        alone[np.arange(len(known)), known] = text[known]
        wrong = (self._box.marks(alone) != claim).any(axis=1)
        if wrong.any():
            return text[known[wrong]]
        if not len(known):
            raise LearnError("pretokenizer: the proof's machine is wrong on a random word")
        mended = np.repeat(text[None], len(known), axis=0)
        mended[np.arange(len(known)), known] = plain[known]
        right = (self._box.marks(mended) == claim).all(axis=1)
        return text[known[right]] if right.any() else text[known]

    def _check_inner(self, limit: int | None) -> None:
        """The number of pieces that begin inside a character must be its mask's, alone and between digits."""
        assert isinstance(self._box, TokenizersBlackbox)
        bits = np.array([int(m).bit_count() for m in self._inner])[self._label]
        for front, back in (("", ""), ("1", "2")):
            points = np.concatenate([members[:limit] for members in self._members])
            for at in range(0, len(points), 4096):
                part = points[at : at + 4096]
                separator = "\ue000" if not (part == 0xE000).any() else "\uf8ff"
                texts = np.full((len(part), len(front) + len(back) + 2), ord(separator), np.uint32)
                texts[:, : len(front)] = [ord(c) for c in front]
                texts[:, len(front)] = part
                texts[:, len(front) + 1 : -1] = [ord(c) for c in back]
                spans = self._box.spans(texts.tobytes().decode("utf-32-le"), separator)
                reached = np.maximum.accumulate(np.append(0, spans[:-1, 1]))
                count = np.bincount(spans[spans[:, 0] < reached, 0], minlength=texts.size).reshape(texts.shape)
                self._odd[part[count[:, len(front)] != bits[part]]] = True
                self.asked += len(part)


def _around(front: Word, middle: np.ndarray, back: Word) -> np.ndarray:
    rows = len(middle)
    fronts = np.broadcast_to(np.frombuffer(front, np.uint8), (rows, len(front)))
    backs = np.broadcast_to(np.frombuffer(back, np.uint8), (rows, len(back)))
    return np.concatenate([fronts, middle, backs], axis=1)
