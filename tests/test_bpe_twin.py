"""The twin is the reference's BPE, and the laws of docs/merges.md hold for it on random merge tables."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import small_bpe
from tokenizers import Tokenizer, models, pre_tokenizers

from toktier.bpe import twin
from toktier.bpe.effective import effective_merges
from toktier.errors import InputError

INFINITE = 1 << 30


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_twin_equals_the_reference_on_random_tables(make):
    rng = random.Random(1)
    for _ in range(250):
        spec = make(rng)
        reference = small_bpe.reference_encode(spec)
        for _ in range(20):
            piece = small_bpe.random_piece(rng, longest=40)
            assert twin.encode_piece(spec, piece) == reference(piece), (piece, spec.merges.tolist())


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_twin_equals_the_reference_on_long_pieces(make):
    """The references change their algorithm with the length of a piece."""
    rng = random.Random(2)
    for _ in range(12):
        spec = make(rng)
        reference = small_bpe.reference_encode(spec)
        for piece in (b"a" * 301, b"ab" * 150, small_bpe.random_piece(rng, longest=600)):
            assert twin.encode_piece(spec, piece) == reference(piece)


def test_of_equal_pairs_the_last_counts():
    """A damaged file may list a pair twice; the reference's map keeps the later rank."""
    token_of = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"bc": 4}
    spec = small_bpe.make_spec(token_of, [(0, 1, 3), (1, 2, 4), (0, 1, 3)], "listed", ignore_merges=False)
    assert twin.encode_piece(spec, b"abc") == small_bpe.reference_encode(spec)(b"abc") == [0, 4]
    pairs, product, _, _ = effective_merges(spec)
    assert (pairs.tolist(), product.tolist()) == ([[1, 2], [0, 1]], [4, 3])


def test_listed_and_ranks_are_not_the_same_rule():
    """Any two neighbours whose bytes are a token merge under "ranks"; under "listed" only a listed pair does."""
    token_of = {b"a": 0, b"b": 1, b"ab": 2, b"ba": 3, b"aba": 4}
    ranks = small_bpe.make_spec(token_of)
    listed = small_bpe.make_spec(token_of, [(0, 1, 2), (1, 0, 3), (0, 3, 4)], "listed", ignore_merges=False)
    for spec, want in ((ranks, [4]), (listed, [2, 0])):
        assert twin.encode_piece(spec, b"aba") == small_bpe.reference_encode(spec)(b"aba") == want


def test_a_byte_without_a_token_is_refused():
    spec = small_bpe.make_spec({b"a": 0, b"b": 1, b"ab": 2})
    with pytest.raises(InputError, match=r"byte 0x78 at offset 2"):
        twin.encode_piece(spec, b"abx")


def test_twin_equals_a_trained_tokenizer_on_every_kind_of_character():
    """A trained byte-level vocabulary of the reference, pieces of marks, Han, emoji and code."""
    from tokenizers import trainers

    text = "lowest rank first, der kleinste zuerst, 最小的先合并 最小 先 합병 e\u0301e\u0301 🙂🙂 \t\t  \n" * 4
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    letters = {c: b for b, c in small_bpe.byte_letters().items()}
    token_of = {bytes(letters[c] for c in s): t for s, t in model["vocab"].items()}
    spell = {s: t for s, t in model["vocab"].items()}
    merges = [(spell[a], spell[b], spell[a + b]) for a, b in model["merges"]]
    spec = small_bpe.make_spec(token_of, merges, "listed", ignore_merges=False)
    rng = random.Random(3)
    pieces = text.split() + ["".join(rng.choices(text, k=rng.randint(1, 30))) for _ in range(300)]
    pieces += [chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(300)]
    encode = small_bpe.reference_encode(spec)
    for piece in pieces:
        assert twin.encode_piece(spec, piece.encode()) == encode(piece.encode()), piece


# ---- the laws of docs/merges.md ----


def effective_rule(spec):
    pairs, product, _, _ = effective_merges(spec)
    table = {(a, b): (r, p) for r, ((a, b), p) in enumerate(zip(pairs.tolist(), product.tolist(), strict=True))}
    return table, lambda a, b: table.get((a, b))


def all_pairs_rule(spec):
    """The spec's own rule, untouched."""
    if spec.merge_rule == "listed":
        return twin.listed_rule(spec.merges.tolist())
    bytes_of = {t: spec.token_bytes(t) for t in range(spec.n_ids) if spec.token_bytes(t)}
    return twin.ranks_rule({b: t for t, b in bytes_of.items()}, bytes_of)


def single_bytes(spec, piece):
    token_of = {spec.token_bytes(t): t for t in range(spec.n_ids)}
    return [token_of[bytes([b])] for b in piece]


def test_effective_merges_give_the_same_tokens():
    rng = random.Random(4)
    for _ in range(400):
        spec = small_bpe.random_spec(rng)
        table, rule = effective_rule(spec)
        assert len({p for _, p in table.values()}) == len(table)
        for _ in range(15):
            tokens = single_bytes(spec, small_bpe.random_piece(rng))
            assert twin.merge(tokens, rule) == twin.merge(tokens, all_pairs_rule(spec))


def test_a_token_is_reachable_exactly_if_its_own_bytes_give_it():
    rng = random.Random(5)
    for _ in range(300):
        spec = small_bpe.random_spec(rng)
        _, product, reachable, _ = effective_merges(spec)
        rule = all_pairs_rule(spec)
        for t in range(spec.n_ids):
            own = spec.token_bytes(t)
            assert reachable[t] == (bool(own) and twin.merge(single_bytes(spec, own), rule) == [t])
        made = {t for _ in range(30) for t in twin.merge(single_bytes(spec, small_bpe.random_piece(rng)), rule)}
        assert all(reachable[t] for t in made)
        assert sorted(product.tolist()) == [
            t for t in range(spec.n_ids) if reachable[t] and len(spec.token_bytes(t)) > 1
        ]


def reach(table, n):
    """Lowest rank of a merge with the token on the left / on the right."""
    min_left, min_right = np.full(n, INFINITE), np.full(n, INFINITE)
    for (a, b), (r, _) in table.items():
        min_left[a], min_right[b] = min(min_left[a], r), min(min_right[b], r)
    return min_left, min_right


def inner_merges_first(tokens, table, min_left, min_right):
    """The merges inside one character that docs/merges.md allows in every context, done one at a time."""
    tokens = list(tokens)
    while True:
        ranks = [table.get(p, (INFINITE, 0))[0] for p in itertools.pairwise(tokens)]
        for i, r in enumerate(ranks):
            product = table[tokens[i], tokens[i + 1]][1] if r < INFINITE else -1
            if product < 0 or min(min_left[product], min_right[product]) <= r:
                continue
            left = all(q > r for q in ranks[:i]) and min_right[tokens[0]] > r
            right = all(q > r for q in ranks[i + 1 :]) and min_left[tokens[-1]] >= r
            if left and right:
                tokens[i : i + 2] = [product]
                break
        else:
            return tokens


def test_inner_merges_of_a_character_may_be_done_first():
    """Here any random string plays the character; the context is whatever comes."""
    rng = random.Random(6)
    early = 0
    for _ in range(400):
        spec = small_bpe.random_spec(rng)
        table, rule = effective_rule(spec)
        min_left, min_right = reach(table, spec.n_ids)
        for _ in range(15):
            parts = [small_bpe.random_piece(rng, longest=4) for _ in range(rng.randint(1, 6))]
            tokens = [single_bytes(spec, p) for p in parts]
            first = [inner_merges_first(t, table, min_left, min_right) for t in tokens]
            first, tokens = list(itertools.chain(*first)), list(itertools.chain(*tokens))
            early += len(tokens) - len(first)
            assert twin.merge(first, rule) == twin.merge(tokens, rule), (parts, table)
    assert early > 1000  # the law is not empty


def test_all_occurrences_of_the_lowest_rank_at_once_where_it_is_orderly():
    rng = random.Random(7)
    together = wrong_without = 0
    for _ in range(600):
        spec = small_bpe.random_spec(rng)
        table, rule = effective_rule(spec)
        min_left, min_right = reach(table, spec.n_ids)
        for _ in range(10):
            tokens = single_bytes(spec, small_bpe.random_piece(rng))
            ranks = [table.get(p, (INFINITE, -1)) for p in itertools.pairwise(tokens)]
            rank, product = min(ranks, default=(INFINITE, -1))
            if product < 0:
                continue
            merged, i = [], 0
            while i < len(tokens):
                here = i < len(ranks) and ranks[i][0] == rank
                merged.append(product if here else tokens[i])
                i += 1 + here
            same = twin.merge(merged, rule) == twin.merge(tokens, rule)
            if min(min_left[product], min_right[product]) > rank:
                assert same
                together += len(merged) < len(tokens) - 1
            else:
                wrong_without += not same
    assert together > 100
    assert wrong_without > 0  # the test for order is needed
