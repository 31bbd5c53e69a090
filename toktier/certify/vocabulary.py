"""What a vocabulary holds that no text reaches, and where its merges are out of order."""

from __future__ import annotations

from typing import Any

import numpy as np

from toktier.bpe.effective import listed
from toktier.bpe.tables import BpeTables
from toktier.missing import MissingBytes
from toktier.pretok.tables import INSIDE, START, PretokTables
from toktier.spec import Spec

_BLOCK = 1 << 24  # table cells worked on together
_SHOWN = 8


def describe(spec: Spec, bpe: BpeTables, pretok: PretokTables) -> dict[str, Any]:
    """Counts and examples, as `certify --json` prints them."""
    lengths = np.diff(spec.token_offsets)
    own = lengths > 0
    own[[t.id for t in spec.added if t.id < spec.n_ids]] = False  # matched before any merge
    made = np.zeros(spec.n_ids, bool)
    made[bpe.product] = True
    made[bpe.byte_token[bpe.byte_token >= 0]] = True
    texts = _texts(spec, np.flatnonzero(own))
    unmade = np.flatnonzero(own & ~made)
    whole = [t for t in unmade.tolist() if spec.ignore_merges and t in texts and _is_piece(pretok, texts[t])]
    never = np.setdiff1d(unmade, np.array(whole, np.int64))
    cut = _always_cut(pretok, {t: text for t, text in texts.items() if made[t] and len(text) > 1})
    return {
        "tokens": int(own.sum()),
        "unreachable": len(never) + len(cut),
        "not_made_by_their_merges": len(unmade),
        "of_these_only_as_a_whole_piece": len(whole),
        "cut_by_the_pre_tokenizer": len(cut),
        "examples": {
            "not_made": [_shown(spec, t) for t in never[:_SHOWN].tolist()],
            "cut": [_shown(spec, t) for t in cut[:_SHOWN]],
        },
        "outside_the_byte_alphabet": len(spec.unwritten),
        "missing_bytes": [f"0x{b:02X}" for b in MissingBytes(spec).values],
        "merges": _merges(spec, bpe),
    }


def _merges(spec: Spec, bpe: BpeTables) -> dict[str, Any]:
    pairs, rank, product = listed(spec)
    first = np.full(spec.n_ids, -1, np.int64)
    order = np.argsort(rank, kind="stable")[::-1]
    first[product[order]] = rank[order]  # the lowest rank that makes each token, -1 for bytes
    early = (first[pairs] > rank[:, None]).any(1) if len(pairs) else np.zeros(0, bool)
    return {
        "rule": spec.merge_rule,
        "pairs": len(pairs),
        "effective": len(bpe.pairs),
        "before_their_parts": int(early.sum()),
        "not_orderly": int((~bpe.orderly).sum()),
    }


def _texts(spec: Spec, tokens: np.ndarray) -> dict[int, str]:
    """Tokens that are whole characters, as text."""
    found = {}
    for token in tokens.tolist():
        try:
            found[token] = spec.token_bytes(token).decode()
        except UnicodeDecodeError:
            continue
    return found


def _shown(spec: Spec, token: int) -> list[Any]:
    return [token, spec.token_bytes(token).decode("utf-8", "backslashreplace")]


def _symbols(tables: PretokTables, text: str) -> list[int]:
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return tables.symbol[tables.block[points >> 8].astype(np.int64) * 256 + (points & 255)].tolist()


def _always_cut(tables: PretokTables, texts: dict[int, str]) -> list[int]:
    """Ids of the texts that lie within one piece in no text at all: for all states in front and behind some cut."""
    by_length: dict[int, list[int]] = {}
    for token, text in texts.items():
        by_length.setdefault(len(text), []).append(token)
    left, _, right = tables.out.shape
    cut: list[int] = []
    for length, tokens in sorted(by_length.items()):
        step = max(1, _BLOCK // (left * right * length))
        for at in range(0, len(tokens), step):
            part = tokens[at : at + step]
            joined = np.frombuffer("".join(texts[t] for t in part).encode("utf-32-le"), np.uint32).astype(np.int64)
            word = tables.symbol[tables.block[joined >> 8].astype(np.int64) * 256 + (joined & 255)]
            word = word.reshape(len(part), length)
            if not tables.inner[word].any():
                impossible = np.flatnonzero(~_one_piece(tables, word).any((1, 2)))
                cut += [part[i] for i in impossible.tolist()]
    return sorted(cut)


def _one_piece(tables: PretokTables, word: np.ndarray) -> np.ndarray:
    """bool[N, QL, QR]: with this state in front and that one behind, is no mark but the first one other than INSIDE?"""
    count, length = word.shape
    behind = [np.tile(np.arange(tables.out.shape[2], dtype=np.uint8), (count, 1))]
    for i in range(length - 1, 0, -1):
        behind.append(tables.right_next[behind[-1], word[:, i : i + 1]])
    behind.reverse()
    before = np.tile(np.arange(tables.out.shape[0], dtype=np.uint8), (count, 1))
    good = np.ones((count, *tables.out.shape[::2]), bool)
    for i in range(1, length):
        before = tables.left_next[before, word[:, i - 1 : i]]
        good &= tables.out[before[:, :, None], word[:, i, None, None], behind[i][:, None, :]] == INSIDE
    return good


def _is_piece(tables: PretokTables, text: str) -> bool:
    """Is the text exactly one piece in some text?"""
    word = np.array([_symbols(tables, text)], np.uint8)
    if tables.inner[word].any():
        return False
    good = _one_piece(tables, word)[0]
    right, left = tables.right_next, tables.left_next
    behind = np.arange(tables.out.shape[2])
    for x in word[0, :0:-1]:
        behind = right[behind, x]
    good &= tables.out[:, word[0, 0], behind] == START
    if good[:, 0].any():  # the text ends behind it
        return True
    after = np.arange(tables.out.shape[0])
    for x in word[0]:
        after = left[after, x]
    # else some character behind it must not go on with the piece
    for y in range(tables.n_symbols):
        ends = tables.out[after, y] != INSIDE  # [state in front of the text, state behind y]
        if (good[:, right[:, y]] & ends).any():
            return True
    return False
