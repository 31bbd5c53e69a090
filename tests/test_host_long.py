"""Long pieces: cut anywhere and put together, or merged rank by rank, they are what the definition gives."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
import small_bpe

from toktier.bpe import tables as bpe_tables
from toktier.bpe import twin
from toktier.host import long, short
from toktier.host.rounds import RoundMerger
from toktier.host.short import PieceMerger


def made(rng):
    spec = small_bpe.random_spec(rng)
    return spec, bpe_tables.build(spec)


@pytest.mark.parametrize("part", [1, 2, 5, 11])
def test_parts_put_together_are_the_whole(part, monkeypatch):
    monkeypatch.setattr(long, "PART", part)
    rng = random.Random(part)
    for _ in range(120):
        spec, tables = made(rng)
        merger = RoundMerger(tables, PieceMerger(tables))
        pieces = [small_bpe.random_piece(rng, longest=60) for _ in range(5)]
        got = [ids.tolist() for ids in merger.encode(pieces)]
        assert got == [twin.encode_piece(_no_whole(spec), piece) for piece in pieces]


def _no_whole(spec):
    """The same merges; whether a piece is a token as a whole is not asked here."""
    return dataclasses.replace(spec, ignore_merges=False, digest="")


def test_neighbours_that_fit_are_bpe_and_others_are_not():
    """The theorem itself: any tokens that spell a piece are its BPE exactly if each two neighbours fit."""
    rng = random.Random(6)
    seen = {True: 0, False: 0}
    for _ in range(300):
        spec, tables = made(rng)
        plain = _no_whole(spec)
        single = PieceMerger(tables)
        own = [t for t in range(spec.n_ids) if spec.token_bytes(t)]
        own = [t for t in own if twin.encode_piece(plain, spec.token_bytes(t)) == [t]]
        for _ in range(20):
            tokens = rng.choices(own, k=rng.randint(2, 4))
            seams = long.Seams(tables, single.encode)
            fit = all(seams._fit(a, b) for a, b in itertools.pairwise(tokens))
            whole = twin.encode_piece(plain, b"".join(map(spec.token_bytes, tokens)))
            assert fit == (whole == tokens)
            seen[fit] += 1
    assert min(seen.values()) > 100


def test_parts_are_the_piece_and_end_between_characters():
    text = ("aé中🙂" * 50).encode()
    for size in (1, 4, 5, 7, 64):
        parts = long.parts_of(text, size)
        assert b"".join(parts) == text
        assert all(parts)
        if size >= 4:
            assert all(part.decode() for part in parts)
    assert long.parts_of(b"\x80" * 20, 3)  # a piece within a character still ends


def test_rank_by_rank_is_the_definition(monkeypatch):
    monkeypatch.setattr(short, "SHORT", 0)
    monkeypatch.setattr(short, "LONG", 0)
    rng = random.Random(8)
    orderly = 0
    for _ in range(300):
        spec, tables = made(rng)
        merger = PieceMerger(tables)
        orderly += merger._orderly
        for _ in range(4):
            piece = small_bpe.random_piece(rng, longest=60)
            assert merger.encode(piece) == twin.encode_piece(_no_whole(spec), piece)
    assert orderly > 50


def test_a_seam_that_reaches_too_far_is_left_to_the_whole(monkeypatch):
    rng = random.Random(9)
    _, tables = made(rng)
    single = PieceMerger(tables)
    monkeypatch.setattr(long.Seams, "_fit", lambda *_: False)
    seams = long.Seams(tables, single.encode)
    parts = [np.array(single.encode(b"abcabc"), np.int32) for _ in range(3)]
    assert seams.join(parts) is None
