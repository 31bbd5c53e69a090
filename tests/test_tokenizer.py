"""What a user holds: the same ids from every engine, one way to say no, safe to copy, share and send."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import pickle
import subprocess
import sys
import threading
from typing import Any

import families
import numpy as np
import pytest
import tiktoken
import tokenizers

import toktier
from toktier import routing
from toktier.errors import EngineError, InputError, InputTypeError, SpecialTokenError

TEXTS = [
    "",
    "hello world",
    "  two  spaces \n\n and lines\r\n",
    "don't 12345 مرحبا 中文 e\u0301 \u212b\x00 \u00a0",
    "<|im_start|>user\nhi<|im_end|><|endoftext|>",
    "doInBackground 🫠 ſ's " * 30,
]


@pytest.fixture(scope="module")
def tok() -> toktier.Tokenizer:
    return toktier.load(families.encoding("cl100k"))


@pytest.fixture(scope="module")
def qwen() -> toktier.Tokenizer:
    return toktier.load(families.tokenizer("qwen3"))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_ids_and_pieces_are_the_references(family: str, corpus: dict[str, str]) -> None:
    made = families.tokenizer(family)
    ours = toktier.load(made)
    for text in [*TEXTS, *(t[:600] for t in corpus.values())]:
        for add in (False, True):
            want = made.encode(text, add_special_tokens=add).ids
            assert ours.encode(text, add_special_tokens=add, engine="auto").tolist() == want
            assert ours.encode(text, add_special_tokens=add, engine="reference").tolist() == want
        if made.normalizer is None and made.pre_tokenizer is not None and not ours.explain().reason:
            spans = made.pre_tokenizer.pre_tokenize_str(text)
            starts = sorted({len(text[:start].encode()) for _, (start, _) in spans})
            assert ours.piece_starts(text).tolist() == starts
        batch = ours.encode_batch([text, "", text], add_special_tokens=True)
        assert batch.to_lists() == [made.encode(t).ids for t in (text, "", text)]
        assert ours.decode(want) == made.decode(want, skip_special_tokens=False)


@pytest.mark.parametrize("pattern", families.PATTERNS)
def test_tiktoken_ids(pattern: str, corpus: dict[str, str]) -> None:
    made = families.encoding(pattern)
    ours = toktier.load(made)
    for text in [*TEXTS, *(t[:600] for t in corpus.values()), "half \ud83e", "\ud83e\udee0"]:
        want = made.encode(text, allowed_special="all")
        assert ours.encode(text, special_tokens="parse").tolist() == want
        assert ours.encode(text, special_tokens="text").tolist() == made.encode(text, disallowed_special=())
        assert ours.decode_bytes(want) == made.decode_bytes(want)


def test_special_tokens(tok: toktier.Tokenizer, qwen: toktier.Tokenizer) -> None:
    text, made = "see <|endoftext|> in <|endofprompt|>", families.encoding("cl100k")
    with pytest.raises(SpecialTokenError, match="character 4"):
        tok.encode(text)
    with pytest.raises(SpecialTokenError, match=r"texts\[1\]"):
        tok.encode_batch(["fine", text])
    with pytest.raises(SpecialTokenError):
        tok.encode(text, engine="reference")
    for allowed in (set(), {"<|endofprompt|>"}, {"<|endoftext|>", "<|endofprompt|>"}):
        want = made.encode(text, allowed_special=allowed, disallowed_special=())
        for engine in ("auto", "reference"):
            assert tok.encode(text, special_tokens=frozenset(allowed), engine=engine).tolist() == want
    with pytest.raises(InputError, match="unheard"):
        tok.encode(text, special_tokens={"unheard"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="special_tokens"):
        qwen.encode(text, special_tokens={"<|im_end|>"})  # type: ignore[arg-type]
    marked = "<|im_start|>a"
    with pytest.raises(SpecialTokenError):
        qwen.encode(marked, special_tokens="forbid")
    plain = tokenizers.Tokenizer.from_str(families.tokenizer_json("qwen3"))
    plain.encode_special_tokens = True
    for engine in ("auto", "reference"):
        assert qwen.encode(marked, special_tokens="text", engine=engine).tolist() == plain.encode(marked).ids


@pytest.mark.parametrize("bad", [None, b"bytes", 7, ["list"], 1.5])
def test_what_is_no_text(tok: toktier.Tokenizer, bad: Any) -> None:
    for engine in routing.ENGINES:
        with pytest.raises(InputTypeError, match="text must be a str"):
            tok.encode(bad, engine=engine)
    with pytest.raises(InputTypeError, match=r"texts\[1\]"):
        tok.encode_batch(["a", bad])
    with pytest.raises(InputTypeError, match="text"):
        tok.piece_starts(bad)


def test_options_are_checked(tok: toktier.Tokenizer) -> None:
    with pytest.raises(InputError, match=r"engine='gpu'.*auto, device, host, reference"):
        tok.encode("a", engine="gpu")
    with pytest.raises(InputError, match=r"special_tokens='all'.*parse, text, forbid"):
        tok.encode("a", special_tokens="all")
    with pytest.raises(InputTypeError, match="texts"):
        tok.encode_batch("one text")
    with pytest.raises(InputTypeError, match="texts"):
        tok.encode_batch(None)  # type: ignore[arg-type]
    for bad in (1.0, True, "3"):
        with pytest.raises(InputTypeError, match="max_length"):
            tok.encode("a", max_length=bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_length"):
        tok.encode("a", max_length=-1)


def test_max_length(tok: toktier.Tokenizer) -> None:
    ids = tok.encode("a b c d e").tolist()
    assert [tok.encode("a b c d e", max_length=n).tolist() for n in (0, 2, int(1e30))] == [[], ids[:2], ids]


def test_lone_surrogates(tok: toktier.Tokenizer, qwen: toktier.Tokenizer) -> None:
    for engine in ("auto", "reference"):
        with pytest.raises(InputError, match="lone surrogate"):
            qwen.encode("half \ud83e emoji", engine=engine)
        assert tok.encode("a\ud83e", engine=engine).tolist() == families.encoding("cl100k").encode("a\ud83e")


def test_a_tokenizer_that_is_not_byte_level_says_why() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ours = toktier.load(made)
    assert ours.encode("a b").tolist() == [0, 1]
    assert ours.encode_batch(["a", "b a"]).to_lists() == [[0], [1, 0]]
    reason = ours.explain().reason
    assert reason
    assert reason in str(ours.explain("a"))
    for engine in ("device", "host"):
        with pytest.raises(EngineError, match="engine='auto'"):
            ours.encode("a", engine=engine)
    assert ours.decode([0, 1]) == made.decode([0, 1], skip_special_tokens=False)


def test_spans(qwen: toktier.Tokenizer) -> None:
    """Each token's bytes stand at its place in the normalized text."""
    text = "<|im_start|>e\u0301 Ünïcode<|im_end|> 中"
    spans = qwen.encode_spans(text)
    assert spans.ids.tolist() == qwen.encode(text).tolist()
    normalized = text.replace("e\u0301", "é").encode()
    bounds = itertools.pairwise([0, *spans.ends])
    assert [normalized[a:b] for a, b in bounds] == [qwen.token_bytes(i) for i in spans.ids]
    assert spans.n_bytes == len(normalized)


def test_batch_views(tok: toktier.Tokenizer) -> None:
    texts = ["hello world", "", "x"]
    batch = tok.encode_batch(iter(texts))
    assert len(batch) == 3
    assert batch.to_lists() == [r.tolist() for r in batch] == [tok.encode(t).tolist() for t in texts]
    assert batch[-1].tolist() == tok.encode("x").tolist()
    width = max(map(len, batch))
    assert batch.padded(-1).tolist() == [[*r.tolist(), *[-1] * (width - len(r))] for r in batch]
    assert batch.padded(0, 9).shape == (3, 9)
    with pytest.raises(InputError, match="row 0"):
        batch.padded(0, 1)
    with pytest.raises(IndexError):
        batch[3]
    empty = tok.encode_batch([])
    assert (len(empty), len(empty.ids), empty.to_lists(), empty.padded().shape) == (0, 0, [], (0, 0))
    assert (batch.ids.dtype, batch.offsets.dtype) == (np.int32, np.int64)


def test_large_batches_go_in_groups(tok: toktier.Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ab", "", "c" * 50, "d e", "", "f"] * 5
    want = tok.encode_batch(texts).to_lists()
    monkeypatch.setattr("toktier.tokenizer.GROUP", 7)
    assert tok.encode_batch(texts).to_lists() == want


def test_pickle_keeps_what_it_is(tok: toktier.Tokenizer, qwen: toktier.Tokenizer) -> None:
    for ours in (tok, qwen):
        copy = pickle.loads(pickle.dumps(ours))
        assert copy.fingerprint == ours.fingerprint
        assert copy.core is ours.core  # one set of tables a process
        assert copy.encode("hello  world").tolist() == ours.encode("hello  world").tolist()


def test_results_are_the_callers_own(tok: toktier.Tokenizer) -> None:
    ids = tok.encode("hello world")
    want = ids.tolist()
    ids += 1
    assert tok.encode("hello world").tolist() == want


def test_threads_share_one_tokenizer() -> None:
    """Loading and encoding at the same moment from many threads: equal ids, one core."""
    barrier, results = threading.Barrier(12), []

    def work() -> None:
        barrier.wait()
        ours = toktier.load(families.encoding("cl100k"))
        results.append((ours.core, ours.encode("hello 12345 world").tolist()))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 12
    assert len({id(core) for core, _ in results}) == 1
    assert {tuple(ids) for _, ids in results} == {tuple(families.encoding("cl100k").encode("hello 12345 world"))}


def test_what_it_is(tok: toktier.Tokenizer) -> None:
    made = families.encoding("cl100k")
    assert tok.vocab_size == made.n_vocab
    assert tok.special_tokens == made._special_tokens
    assert tok.token_bytes(made.n_vocab - 1) == b"<|endofprompt|>"
    gap = next(
        k for k in range(made.n_vocab) if k not in made._special_tokens.values() and k >= len(made._mergeable_ranks)
    )
    for call in (tok.token_bytes, tok.decoder().push):
        with pytest.raises(InputError, match=f"^token=1000000000 is no token: .* the ids 0 to {made.n_vocab - 1}$"):
            call(10**9)
        with pytest.raises(InputError, match=f"^token={gap} is no token: .* with gaps$"):
            call(gap)
        for bad in ([5], "a", 5.0, True, None):
            with pytest.raises(InputTypeError, match=f"^token must be an int, not {type(bad).__name__}: it is one id"):
                call(bad)
    assert tok.count("hello world") == len(tok.encode("hello world"))
    assert "cl100k" in repr(tok)
    parts = {p.name: p for p in tok.explain("short").parts}
    assert parts["pre-tokenizer"].runs_on in ("host", "reference")
    assert str(parts["BPE"].why) in str(tok.explain())


def test_import_is_light() -> None:
    """`import toktier` loads no JAX, no reference, and not even NumPy's heavier parts."""
    code = (
        "import sys, toktier; heavy = {'jax', 'tokenizers', 'tiktoken', 'numpy', 'regex'} & set(sys.modules); "
        "assert not heavy, heavy; assert set(toktier.__all__) <= set(dir(toktier)); "
        "assert toktier.Batch.__name__ == 'Batch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_jax() -> None:
    """Where JAX cannot be imported the host engine answers, and engine="device" says what is missing."""
    code = (
        "import sys; sys.modules['jax'] = None; import toktier; tok = toktier.load('cl100k_base'); "
        "assert tok.encode('hello world').tolist() == [15339, 1917]; assert len(tok.encode('ab ' * 200000)) > 0\n"
        "try: tok.encode('a', engine='device')\n"
        "except toktier.ToktierError as e: assert 'JAX' in str(e), e\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "backend", lambda: "gpu")
    sizes = (0, routing.SMALL - 1, routing.CROSSOVER["gpu"], routing.COLD)
    assert [routing.choose(n, True) for n in sizes] == ["host", "host", "device", "device"]
    assert [routing.choose(n, False) for n in sizes] == ["host", "host", "host", "device"]
    for none in ("", "cpu"):
        monkeypatch.setattr(routing, "backend", lambda none=none: none)
        assert routing.choose(1 << 30, True) == "host"
    monkeypatch.undo()
    monkeypatch.setitem(routing._state, "forked", True)
    assert routing.backend() == ""


def test_short_texts_of_a_rank_file_go_to_tiktoken_once_enough_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids and errors are the same, and `explain` says it; what tiktoken fails on, the host engine takes."""
    shared = families.encoding("o200k")
    special = {"<|endoftext|>": shared.n_vocab, "<|own|>": shared.n_vocab + 1}  # so that no other test has used it
    ours = toktier.load(
        tiktoken.Encoding(
            "own", pat_str=shared._pat_str, mergeable_ranks=shared._mergeable_ranks, special_tokens=special
        )
    )
    text = "One text <|endoftext|>, again \ud800 and again. "
    want = ours.encode(text, engine="host", special_tokens="parse").tolist()
    assert (ours.explain(text).engine, ours.core.reference.started) == ("host", False)
    monkeypatch.setattr(routing, "TIKTOKEN_PAYS", 100)
    for _ in range(4):
        assert ours.encode(text, special_tokens="parse").tolist() == want
    assert ours.core.reference.started
    told = ours.explain(text)
    assert (told.engine, "quickest" in told.reason) == ("reference", True)
    assert ours.explain("a" * (routing.TIKTOKEN + 1)).engine == "host"
    wide = "\u4e2d" * routing.TIKTOKEN  # of more bytes, but `encode` does not count them
    assert ours.explain(wide).engine == "reference"
    for engine in ("auto", "host"):
        with pytest.raises(SpecialTokenError, match="endoftext"):
            ours.encode(text, engine=engine)
    reference = type(ours.core.reference)
    monkeypatch.setattr(reference, "_ids", lambda *_: (_ for _ in ()).throw(RuntimeError("stack overflow")))
    assert ours.encode(text, special_tokens="parse").tolist() == want
    with pytest.raises(EngineError, match="stack overflow"):
        ours.encode(text, special_tokens="parse", engine="reference")


def _encoded(ours: toktier.Tokenizer, texts: list[str]) -> list[list[int]]:
    return [ours.encode(t).tolist() for t in texts]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns where a test before this one has loaded it
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(qwen: toktier.Tokenizer, method: str) -> None:
    """A tokenizer in use goes to workers of either kind; they give the same ids and leave the device alone."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    want = _encoded(qwen, TEXTS)
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = [pool.apply_async(_encoded, (qwen, TEXTS)) for _ in range(3)]
        assert [r.get(timeout=60) for r in results] == [want] * 3
        assert pool.apply_async(routing.in_worker).get(timeout=60)
    assert not routing.in_worker()


def test_threads_mix_options(qwen: toktier.Tokenizer) -> None:
    """Options of one call never leak into another thread's."""
    text = "<|im_start|>e\u0301 hello 123<|im_end|>"
    calls = [
        lambda: qwen.encode(text).tolist(),
        lambda: qwen.encode(text, special_tokens="text").tolist(),
        lambda: qwen.encode(text, engine="reference").tolist(),
        lambda: qwen.encode(text, special_tokens="text", engine="reference").tolist(),
        lambda: qwen.encode_batch([text, "a"] * 3).to_lists(),
        lambda: qwen.decode(qwen.encode(text), skip_special_tokens=True),
    ]
    want = [call() for call in calls]
    assert want[0] == want[2] != want[1] == want[3]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert list(pool.map(lambda call: call(), calls)) == want
