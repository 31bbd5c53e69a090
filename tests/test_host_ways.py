"""No way through the host engine changes a result, nor do the segments into which pieces fall."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
from typing import NamedTuple

import families
import numpy as np
import pytest
import small_bpe
import tokenizers

import toktier
from toktier.bpe import tables, twin
from toktier.bpe.segments import Segmenter
from toktier.host import HostEngine, engine
from toktier.pretok.host_scan import piece_bounds

FAMILIES = ["gpt2", "llama3", "deepseek_v3", "starcoder"]
NASTY = (
    "aabbdEeLlmrRsStTvV'''ıſ \t\n\r  \n\n0123456789.,;-_=#/\u00a0\u2003\u3000\x85éèß—。，中文字한글かなคนกิ่हिन्दी"
    "приветЭТО\u0301\u0302\u0345\u200d👩🏽🙂\U0001f1e9\x00\x0b\x0c\x7f\u0080"
)


class Tables(NamedTuple):
    pretok: object
    bpe: tables.BpeTables


@pytest.fixture(scope="module", params=[*FAMILIES, "o200k_base"])
def parts(request):
    """The tables of a tokenizer with a production pre-tokenizer."""
    source = request.param if request.param == "o200k_base" else families.tokenizer(request.param)
    return toktier.load(source).core.tables


def nasty(rng, longest=40) -> bytes:
    text = "".join(rng.choices(NASTY, k=rng.randint(1, longest)))
    return text.encode().replace(b"\x7f", b"\xff") if rng.random() < 0.3 else text.encode()


def pieces_of(pretok, data: bytes) -> list[bytes]:
    starts, ends = piece_bounds(pretok, np.frombuffer(data, np.uint8))
    return [data[i:j] for i, j in zip(starts.tolist(), ends.tolist(), strict=True)]


# ---- segments ----


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_merging_segments_is_merging_the_piece(make):
    """Random tables over bytes of a few characters, so that tokens begin and end inside characters."""
    rng = random.Random(4)
    cut = 0
    for _ in range(30):
        spec = make(rng, bytes(sorted(set("aéè—🙂".encode()))))
        bpe = tables.build(spec)
        rule = twin._vocabulary(spec).rule
        pieces = ["".join(rng.choices("aéè—🙂", k=rng.randint(1, 9))).encode() for _ in range(150)]
        pieces += [p[i:] or p for p in pieces[:40] for i in (1, 2)] + [p[:-i] or p for p in pieces[:40] for i in (1, 2)]
        segments, counts = Segmenter(bpe).split(pieces)
        assert len(counts) == len(pieces)
        assert sum(counts) == len(segments)
        rest = iter(segments)

        def merged(data, bpe=bpe, rule=rule):
            return twin.merge([int(bpe.byte_token[b]) for b in data], rule)

        for piece, n in zip(pieces, counts, strict=True):
            parts = list(itertools.islice(rest, n))
            assert b"".join(parts) == piece
            assert all(parts)
            assert [t for p in parts for t in merged(p)] == merged(piece), (piece, parts)
            cut += n > 1
    assert cut > 100


def test_no_token_lies_across_a_cut_and_clauses_fall_apart():
    spec = toktier.load("o200k_base").spec
    bpe = toktier.load("o200k_base").core.tables.bpe
    pieces = [spec.token_bytes(t) for t in np.unique(bpe.product).tolist()]
    assert Segmenter(bpe).split(pieces) == (pieces, [1] * len(pieces))
    segments, _ = Segmenter(bpe).split(["你是如何使用这个软件的呢".encode()])
    assert len(segments) > 2


# ---- the whole engine ----


def reference_of(parts):
    """Ids by pieces of the automata and merges one by one."""
    host = HostEngine(Tables(None, parts.bpe))

    def ids(data):
        return np.frombuffer(b"".join(host.encode_pieces(pieces_of(parts.pretok, data))), np.int32).tolist()

    return ids


def test_no_way_through_the_engine_changes_a_result(parts, monkeypatch, corpus):
    rng = random.Random(5)
    want_of = reference_of(parts)
    texts = [nasty(rng, rng.choice([5, 60, 300])) for _ in range(120)] + [t.encode() for t in corpus.values()]
    want = [want_of(t) for t in texts]
    for warm, vocabulary, compiled in ((0, 0, 10**9), (10**9, 10**9, 10**9), (64, 64, 1)):
        monkeypatch.setattr(engine, "_WARM", warm)
        monkeypatch.setattr(engine, "_VOCABULARY", vocabulary)
        monkeypatch.setattr(engine, "_HAN", 0x80 if warm else 0xE3)
        monkeypatch.setattr(engine, "_WIDE", 1)
        # bytes from which on the compiled merger takes part, looks pieces up, and has parts side by side
        monkeypatch.setattr(engine, "_COMPILE_BYTES", compiled)
        monkeypatch.setattr(engine, "_LONG_TEXT", 100)
        monkeypatch.setattr(engine, "_PART", 1000)
        for entries in (1 << 16, 20):
            host = HostEngine(parts, cache_entries=entries)
            for _ in range(2):
                for text, ids in zip(texts, want, strict=True):
                    encoded = host.encode_buffer(text)
                    assert encoded.ids.tolist() == ids
                    sizes = parts.bpe.token_length[encoded.ids]
                    assert (encoded.ends - sizes >= np.append(0, encoded.ends[:-1])).all()
                    covered = np.frombuffer(text, np.uint8) != 0xFF
                    assert len(ids) == 0 or sizes.sum() == covered.sum()
                    assert all(text[j - n : j].find(b"\xff") < 0 for j, n in zip(encoded.ends, sizes, strict=True))
            for cache in (host.cache, host.segments):
                assert len(cache) <= 2 * entries
                assert all(len(key) <= 128 for key in cache.young)


def test_short_texts_do_not_wait_for_the_compiled_loop(parts):
    host = HostEngine(parts)
    text = b"some words, and others " * 900
    want = HostEngine(parts).encode_buffer(text).ids
    while host._bytes < engine._COMPILE_BYTES:
        assert np.array_equal(host.encode_buffer(text).ids, want)
    making = [t for t in threading.enumerate() if t.name == "compiled-loop"]
    assert making or host._compiled is not None
    for thread in making:
        thread.join()
    assert host._compiled is not None
    assert np.array_equal(host.encode_buffer(text).ids, want)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_the_loop_is_made_makes_its_own():
    code = """
import os, threading, toktier
host = toktier.load("cl100k_base").core.host
taken = threading.Event()
making = threading.Thread(target=lambda: (host._making.attempt(), taken.set(), threading.Event().wait()), daemon=True)
making.start()
taken.wait()
host.warmup()
assert host._compiled is None  # another thread makes it: nobody waits
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
host.warmup()
os._exit(host._compiled is None)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_a_program_that_ends_while_the_loop_is_made_ends_in_silence():
    code = """
import toktier
tok = toktier.load("o200k_base")
text = "some words, and others " * 900
while not tok.core.host._bytes >= 1 << 17:
    tok.encode(text, engine="host")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == done.stdout == ""


@pytest.mark.parametrize(
    "first",
    [
        {"type": "WhitespaceSplit"},
        {"type": "Split", "pattern": {"Regex": r"[a-z]+|\d{1,3}"}, "behavior": "Removed", "invert": True},
    ],
    ids=["spaces", "all but words"],
)
def test_characters_that_are_in_no_piece_reach_no_token(first, corpus):
    """Of one byte and of several, in short texts and in long ones that are cut into segments and parts."""
    config = json.loads(families.tokenizer_json("gpt2"))
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    config["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [first, split]}
    tok = toktier.load(tokenizers.Tokenizer.from_str(json.dumps(config)))
    tok.core.host.warmup()
    long = "".join(corpus.values())
    for text in [
        "a  b\u3000\u3000c",
        "\u3000 a\u4e2d\u6587 b ",
        " ",
        *corpus.values(),
        long,
        long * (1 + (1 << 19) // len(long)),
    ]:
        want = tok.encode(text, engine="reference")
        spans = tok.encode_spans(text, engine="host")
        assert spans.ids.tolist() == want.tolist()
        if len(text) < 10_000:
            data, tokens = text.encode(), [tok.token_bytes(t) for t in want.tolist()]
            assert [data[j - len(t) : j] for t, j in zip(tokens, spans.ends.tolist(), strict=True)] == tokens
