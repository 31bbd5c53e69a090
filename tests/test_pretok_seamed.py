"""The pattern without look-ahead and its seams: derived, proven, and cut by tiktoken's engine as the twin cuts."""

from __future__ import annotations

import random
import warnings

import families as small
import numpy as np
import pytest
import small_bpe
from test_pretok_written import ALPHABET, WITHOUT, pieces, tables_of

import toktier
from toktier import pipeline
from toktier.certify.machine import bimachine
from toktier.host.compiled import _WholeOnly, loop, ranks_of
from toktier.host.engine import HostEngine
from toktier.pretok import seamed, written
from toktier.pretok.generate import families
from toktier.pretok.verify import Plan

WIDE = "한글ꀀꙀꬰ힣éßıſ\u00a0\u2003\u2028\u0085—“”’…→🚀😀\ufe0f\u200d\ufeff\uffff\u0378²٣ǅʰ\u0301ЖжאبΩωⅧ１𠀀"


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


def test_rules_whose_seams_hide_what_the_other_looks_for_are_refused():
    """`s|t|a+|[st]+(?!a)|[ds]+(?![ta])|...`: in "dsta" the seam of the one stands in front of the other's t."""
    d, s, t, a = (frozenset({k}) for k in range(4))

    def pattern(*behind):
        runs = (s | t, d | s)
        leaves = [f"{written.class_of(r)}+(?!{written.class_of(b)})" for r, b in zip(runs, behind, strict=True)]
        return "|".join([*map(written.class_of, (s, t)), *leaves, written.class_of(d | a)])

    assert seamed.derive(pattern(a, t | a), 5) is None
    assert len(seamed.derive(pattern(a, a), 5).rules) == 2


def test_a_pattern_with_empty_matches_is_not_proven():
    """`re` tries again behind an empty match, Rust's engine goes on; and one at the end of a text is no piece."""
    tables, _ = tables_of("gpt2")
    pattern = f"{tables.written}|{written.class_of(frozenset({0}))}*"
    assert written.counterexamples(pattern, tables, bimachine(tables), Plan(0, 0, 0))


@pytest.mark.parametrize("few", [seamed._FEW, 0x110000])
def test_a_run_may_hold_any_character(few, monkeypatch):
    """A backslash means something where `re` reads what to put in.  With pairs, and with one pattern for all."""
    monkeypatch.setattr(seamed, "_FEW", few)
    tables, _ = tables_of("gpt2")
    symbol = written.labels(tables, 128)
    run, behind = (frozenset(symbol[list(text)].tolist()) for text in (b"\\,", b"bcd"))
    text_of = seamed.SeamedText(seamed.Seamed(tables.written, (seamed.Rule(run, behind),)), tables)
    for text, want in ((r"a,\b", "a,\0\\b"), (r"a\\b", "a\\\0\\b"), (r"a\,b\n", "a\\\0,b\\n"), (r"\,1", r"\,1")):
        assert text_of.sew(text) == want
    many = "!%&*+-/:;<=>?@\\^_`|~,."  # so many that all pairs would be too many patterns
    assert text_of.sew(f"{many}b") == f"{many[:-1]}\0.b"
    assert len(text_of._subs) <= 1 + seamed._PAIRED**2


def test_one_pattern_does_for_a_run_of_many_characters():
    tables, _ = tables_of("deepseek_v3")
    sewn = seamed.proven(tables)
    assert sewn is not None
    text_of = seamed.SeamedText(sewn, tables)
    private = "".join(map(chr, range(0xF000, 0xF200)))
    assert text_of.sew(private + "a" + private) in (private + "a" + private, f"{private[:-1]}\0{private[-1]}a{private}")
    assert len(text_of._subs) <= 1
    pieces_of = seamed._pieces(sewn)
    symbols = "".join(map(chr, 0xE000 + written.labels(tables, 0x10000)[list(map(ord, private + "a"))]))
    assert ("\0" in text_of.sew(private + "a")) == (len(pieces_of(symbols)) > 1)


def test_a_pattern_too_large_for_its_engine_is_left_out(monkeypatch):
    from toktier.host import engine as host

    class Large(seamed.SeamedText):
        def __init__(self, *args):
            super().__init__(*args)
            self.pattern = r"(?:\p{L}{1,1000}){1,1000}"

    monkeypatch.setattr(host, "SeamedText", Large)
    tok = toktier.load("o200k_base")
    engine = HostEngine(tok.core.tables)
    assert "until 128 KiB of text" in engine.explain()
    engine.warmup()
    assert engine._seamed is None
    assert "tiktoken's engine refuses the pattern" in engine.explain()
    assert engine.encode_buffer(b"some words").ids.tolist() == tok.encode("some words").tolist()


def test_tokens_with_the_seam_in_them_are_not_taken_for_a_difference():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    hf = Tokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False)
    hf.train_from_iterator(["a \0\0b  \0 the  \0\0", "the the \0\0b"] * 9, trainer)
    tok = toktier.load(hf)
    assert any(b"\0" in tok.token_bytes(t) and len(tok.token_bytes(t)) > 1 for t in range(tok.vocab_size))
    tok.core.host.warmup()
    assert tok.core.host._seamed.usable
    for text in ("a  the", "a \0\0the  \0b", "  the"):
        assert tok.encode(text, engine="host").tolist() == hf.encode(text).ids


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
    assert "in one pass of tiktoken's loop" in engine.explain()
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
    assert "its pattern was found to differ" in engine.explain()


def test_tokens_that_no_merges_make_are_put_where_they_are_whole_pieces(corpus):
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    hf = Tokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=letters, show_progress=False)
    hf.train_from_iterator(["".join(corpus.values())[:20_000]], trainer)
    parts = json.loads(hf.to_str())
    parts["model"]["ignore_merges"] = True
    # of two merged tokens, of three, with another one in front, and of letters of two bytes
    words = [" theory", " theoryof", "wwwx", " \u0449\u0449", "\u0449\u0449"]
    letter = small_bpe.byte_letters()
    for word in words:
        token = "".join(letter[b] for b in word.encode())
        parts["model"]["vocab"].setdefault(token, len(parts["model"]["vocab"]))
    hf = Tokenizer.from_str(json.dumps(parts))
    tok = toktier.load(hf)
    engine = tok.core.host
    engine.warmup()
    assert engine._seamed is not None
    assert sorted(engine._whole_only) == sorted(map(str.encode, words))
    rng = random.Random(5)
    pool = [
        " theory",
        " theoryof",
        "theory",
        "wwwx",
        " wwwx",
        "w",
        "\u0449\u0449",
        " ",
        "  ",
        "\n",
        "of",
        ".",
        " the",
        "s",
    ]
    for _ in range(400):
        text = "".join(rng.choices(pool, k=rng.randint(1, 12)))
        want = hf.encode(text).ids
        ids, lengths = engine.encode_short(text.encode())
        assert ids.tolist() == want, text
        assert lengths.tolist() == [len(tok.token_bytes(t)) for t in want]
        assert engine.encode_buffer(text.encode()).ids.tolist() == want


def test_many_tokens_that_begin_alike_cost_one_look():
    tokens = {b"ab" + bytes([97 + i, 97 + j]): bytes(4) for i in range(26) for j in range(26)}
    whole = _WholeOnly(tokens, lambda token: list(token), 256)  # merges make nothing of them but their bytes
    assert [len(kinds) for kinds in whole._merged.values()] == [1]
    assert whole.stands_in(np.frombuffer(b"xxabzzxx", np.uint8).astype(np.int32))
    assert not whole.stands_in(np.frombuffer(b"xxab", np.uint8).astype(np.int32))
    assert not whole.stands_in(np.frombuffer(b"abA", np.uint8).astype(np.int32))


@pytest.mark.parametrize("name", ["o200k_base", "qwen3"])
def test_added_tokens_among_short_texts(name):
    tok = toktier.load(name if name == "o200k_base" else small.tokenizer(name))
    engine, steps = HostEngine(tok.core.tables), tok.core.pipeline
    engine.warmup()
    rng = random.Random(name)
    pool = [a.content for a in tok.spec.added][:6]
    pool += ["some", " words", "\n", "  ", "\u044d\u0442\u043e", "'s", "12345"]
    ran = 0
    for _ in range(300):
        text = "".join(rng.choices(pool, k=rng.randint(1, 9)))
        prepared = steps.prepare((text,), "parse")
        found = engine.encode_short(prepared.buffer)
        if not len(prepared.marks.ids) or found is None:
            continue
        ran += 1
        got = pipeline.finish_lengths(prepared, *found)
        want = pipeline.finish_placed(prepared, engine.encode_buffer(prepared.buffer))
        assert [a.tolist() for a in got[:2]] == [a.tolist() for a in want[:2]], text
        assert got[2] == want[2] == len(text.encode())
    assert ran > 100
