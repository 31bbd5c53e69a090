"""The pattern without look-ahead and its seams: derived, proven, and cut by tiktoken's engine as the twin cuts."""

from __future__ import annotations

import random
import warnings

import families as small
import numpy as np
import pytest
from test_pretok_written import ALPHABET, WITHOUT, pieces, tables_of

import toktier
from toktier.certify.machine import bimachine
from toktier.host.compiled import loop, ranks_of
from toktier.host.engine import HostEngine
from toktier.pretok import seamed, written
from toktier.pretok.generate import families
from toktier.pretok.verify import Plan

WIDE = "éßıſ\u00a0\u2003\u2028\u0085—“”’…→🚀😀\ufe0f\u200d\ufeff\uffff\u0378²٣ǅʰ\u0301ЖжאبΩωⅧ１𠀀"


@pytest.mark.parametrize("name", families())
def test_tiktoken_cuts_as_the_twin_does(name):
    """All pieces and unions of touching ones are tokens, so the ids are the pieces' only if the cuts are theirs."""
    tables, _ = tables_of(name)
    sewn = seamed.proven(tables)
    assert (sewn is None) == (name in WITHOUT)
    if sewn is None:
        return
    text_of = seamed.SeamedText(sewn, tables)
    rng, cut = random.Random(name), {}
    for k in range(1200):
        text = "".join(rng.choices(ALPHABET.replace("\0", "") + WIDE * (k % 2), k=rng.randint(1, 25)))
        assert not text.encode().translate(None, seamed.BYTES)
        cut[text] = [piece.encode() for piece in pieces(tables, text)]
    ranks = {bytes([b]): b for b in range(256)}
    for found in cut.values():
        for size in (1, 2, 3):
            for k in range(len(found) - size + 1):
                ranks.setdefault(b"".join(found[k : k + size]), len(ranks))
    encoding = loop(ranks, text_of.pattern)
    for text, found in cut.items():
        assert ranks_of(encoding, text_of.sew(text)).tolist() == [ranks[piece] for piece in found], text
    together = list(cut)[:40]  # texts side by side, as added tokens leave them
    if not text_of.ends:
        want = [ranks[piece] for text in together for piece in cut[text]]
        assert ranks_of(encoding, text_of.sew("\0".join(together))).tolist() == want


@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3", "r50k_base", "llama3"])
def test_the_proof_holds_and_a_changed_pattern_fails_it(name):
    tables, _ = tables_of(name)
    machine, plan = bimachine(tables), Plan(1, 1, 0)
    sewn = seamed.proven(tables)
    assert sewn is not None
    assert seamed.counterexamples(sewn, tables, machine, plan) == []
    rule = sewn.rules[-1]
    for changed in (
        sewn._replace(rules=()),
        sewn._replace(pattern=sewn.pattern.replace("]+", "]", 1)),
        sewn._replace(rules=(*sewn.rules[:-1], rule._replace(behind=rule.run))),
    ):
        assert seamed.counterexamples(changed, tables, machine, plan), changed


def test_only_what_was_proven_is_used():
    import dataclasses

    tables, _ = tables_of("gpt2")
    assert seamed.proven(tables)
    assert seamed.proven(dataclasses.replace(tables, seamed="")) is None
    assert seamed.proven(dataclasses.replace(tables, seamed=tables.seamed + " ")) is None
    first, second = (written.class_of(frozenset(symbols)) for symbols in ((0, 1), (1, 2)))
    for pattern in ("", f"{first}+(?!{second})|{second}", f"{first}(?={second})|{second}+", f"(?<={first}){second}"):
        assert seamed.derive(pattern, 5) is None


@pytest.mark.parametrize("source", ["gpt2", "deepseek_v3", "o200k_base", "cl100k_base"])
def test_a_host_engine_gives_the_same_ids_with_and_without(source, corpus):
    tok = toktier.load(source if source.endswith("base") else small.tokenizer(source))
    with_it, without = HostEngine(tok.core.tables), HostEngine(tok.core.tables)
    with_it.warmup()
    assert with_it._seamed is not None
    rng = random.Random(source)
    whole = "".join(corpus.values())
    texts = [whole[at : at + size] for at in range(0, len(whole), len(whole) // 30) for size in (1, 7, 300, 1_400)]
    texts += ["".join(rng.choices(ALPHABET + WIDE, k=60)) for _ in range(200)]
    ran = 0
    for text in texts:
        data = text.encode().replace(b"#", b"\xff")
        got, want = with_it.encode_buffer(data), without.encode_buffer(data)
        ran += with_it._seamed.encode(data) is not None
        assert np.array_equal(got.ids, want.ids), text
        assert np.array_equal(got.ends, want.ends), text
    assert ran > len(texts) // 4


def test_a_difference_is_seen_and_ends_the_use(monkeypatch):
    from toktier.host import seamed as way

    tok = toktier.load("o200k_base")
    engine = HostEngine(tok.core.tables)
    engine.warmup()
    merger = engine._seamed
    assert merger is not None
    monkeypatch.setattr(way, "WATCHED", 100)
    text = b"some   words, and    more of them\n" * 4
    want = HostEngine(tok.core.tables).encode_buffer(text).ids
    monkeypatch.setattr(merger._text, "sew", lambda text: text)
    merger._until = 0
    with pytest.warns(RuntimeWarning, match="cut a text of 136 bytes otherwise"):
        assert np.array_equal(engine.encode_buffer(text).ids, want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(engine.encode_buffer(text).ids, want)
    assert not merger.usable
