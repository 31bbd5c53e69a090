"""Behaviours that other tokenizers were reported for: threads, forks, caches, damaged files, missing devices."""

import asyncio
import base64
import concurrent.futures
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import families
import numpy as np
import pytest
import tokenizers

import toktier
from toktier.errors import InputError, InputTypeError, SourceError

TEXTS = [f"w{i}_43 " * (1 + i % 43) + "é中🙂"[i % 3] * (i % 7) + "\n" * (i % 3) for i in range(150)]
SECONDS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("behaviour")
    (folder / "tokenizer.json").write_text(families.tokenizer_json("qwen3", 3000), encoding="utf-8")
    return folder


def python(code, *arguments, **environment):
    """The standard output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# -- threads and processes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_threads_that_encode_decode_and_batch_at_once(family):
    """g141, g142: a shared tokenizer under threads of every kind gives what one thread gives."""
    native = families.tokenizer(family)
    tokenizer = toktier.load(native)
    want = [native.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert all(native.decode(ids, skip_special_tokens=False) == text for ids, text in zip(want, TEXTS, strict=True))

    def work(number):
        rng = random.Random(number)
        order = rng.sample(range(len(TEXTS)), 60)
        if number % 4 == 3:
            batches = [order[i : i + 7] for i in range(0, len(order), 7)]
            return all(
                tokenizer.encode_batch([TEXTS[k] for k in b]).to_lists() == [want[k] for k in b] for b in batches
            )
        if number % 4 == 2:
            return all(tokenizer.decode(want[k]) == TEXTS[k] for k in order)
        return all(tokenizer.encode(TEXTS[k]).tolist() == want[k] for k in order)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def test_many_encodes_in_an_event_loop(folder):
    """g147."""
    tokenizer, text = toktier.load(folder), "lorem 12, ipsum\n" * 2000

    async def all_of_them():
        return await asyncio.gather(*(asyncio.to_thread(tokenizer.encode, text) for _ in range(8)))

    want = families.tokenizer("qwen3", 3000).encode(text, add_special_tokens=False).ids
    assert [ids.tolist() for ids in asyncio.run(all_of_them())] == [want] * 8


FORKS = """
import os, signal, sys, warnings
from concurrent.futures import ThreadPoolExecutor
warnings.simplefilter("ignore")
import toktier
tok = toktier.load(sys.argv[1])
texts = [f"w{i}_ " * (1 + i % 9) + "é中" * (i % 3) for i in range(200)]
def ids():
    return [tok.encode(t).tolist() for t in texts]
with ThreadPoolExecutor(4) as pool:
    want = list(pool.map(lambda t: tok.encode(t).tolist(), texts))
    if sys.argv[2] == "device":
        assert tok.encode("".join(texts), engine="device").tolist() == tok.encode("".join(texts)).tolist()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        same = ids() == want
        if sys.argv[2] == "device":
            try:
                tok.encode("a", engine="device")
                same = False
            except toktier.ToktierError as e:
                same = same and "fork" in str(e)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ids() == want
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("used", ["threads", "device"])
def test_a_child_forked_from_a_busy_parent(folder, used):
    """g144, g298, g299: after a thread pool, or after the device was used, a forked child answers and never hangs."""
    python(FORKS, folder, used)


# -- caches --------------------------------------------------------------------------------------------------------

LOADS = """
import sys, hashlib, toktier
tok = toktier.load(sys.argv[1])
ids = tok.encode("It's 12345 in 中文, naïve e\\u0301 <|im_end|>\\n\\n" * 50)
print(hashlib.sha256(ids.tobytes()).hexdigest(), tok.core.reason)
"""


def test_processes_that_start_at_once_and_a_cache_damaged_between_runs(tmp_path):
    """g303, g304, g305: an empty cache filled by several processes at once, then files cut and swapped."""
    config = json.loads(families.tokenizer_json("qwen3", 3000))
    config["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    path, cache = tmp_path / "tokenizer.json", tmp_path / "cache"
    path.write_text(json.dumps(config), encoding="utf-8")
    text = "It's 12345 in 中文, naïve e\u0301 <|im_end|>\n\n" * 50
    ids = np.array(tokenizers.Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids, np.int32)
    want = hashlib.sha256(ids.tobytes()).hexdigest()
    environment = {**os.environ, "TOKTIER_CACHE": str(cache)}
    started = [
        subprocess.Popen([sys.executable, "-c", LOADS, path], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [p.communicate(timeout=SECONDS)[0].strip() for p in started] == [want] * 4
    assert [p.returncode for p in started] == [0] * 4
    kept = sorted(p for p in cache.rglob("*") if p.is_file())
    assert len(kept) >= 2
    a, b = kept[:2]
    one, other = a.read_bytes(), b.read_bytes()
    a.write_bytes(other)  # change places
    b.write_bytes(one)
    for file in kept[2:]:
        file.write_bytes(file.read_bytes()[:-7])
    assert python(LOADS, path, TOKTIER_CACHE=str(cache)).strip() == want
    for file in cache.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert python(LOADS, path, TOKTIER_CACHE=str(cache)).strip() == want


def test_memory_does_not_grow_with_what_was_encoded(folder):
    """g150, g154: distinct phrases leave no more behind than the bounded cache of pieces."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    code = """
import random, sys, toktier
def resident():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS"))
tok = toktier.load(sys.argv[1])
rng = random.Random(1)
def phrases(n):
    for i in range(n):
        tok.encode("".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(40)), engine="host")
phrases(3000)
before = resident()
phrases(12000)
print(resident() - before)
"""
    assert int(python(code, folder)) < 64 * 1024


# -- devices -------------------------------------------------------------------------------------------------------


def test_a_platform_that_is_not_there(folder):
    """g294, g295: import, small and large texts work; the device asked for by name says what is missing."""
    code = """
import sys, toktier
tok = toktier.load(sys.argv[1])
assert len(tok.encode("hello world")) > 0
assert len(tok.encode("hello world " * 40000)) > 0
try:
    tok.encode("a", engine="device")
except toktier.ToktierError as e:
    assert "engine='host'" in str(e), e
else:
    raise SystemExit("no error")
"""
    python(code, folder, JAX_PLATFORMS="cuda", CUDA_VISIBLE_DEVICES="-1")


def test_tiny_texts_start_no_device():
    """g264: many tiny encodes and a batch of them leave JAX alone."""
    code = """
import sys, toktier
tok = toktier.load("cl100k_base")
for _ in range(3000):
    assert len(tok.encode("ok")) == 1
docs = ["ab", "c", "\\n", "\\n", "don", "'t", " ", "x", "12", "3", "4", "e", "\\u0301", "<|im_", "end|>", ""] * 50
assert tok.encode_batch(docs).to_lists() == [tok.encode(d).tolist() for d in docs]
assert "jax" not in sys.modules
"""
    python(code)


def test_one_large_document_among_tiny_ones(folder):
    """g262."""
    tokenizer, native = toktier.load(folder), families.tokenizer("qwen3", 3000)
    docs = ["x"] * 500 + ["big words 123, " * 3000] + ["y z"] * 500
    want = [native.encode(d, add_special_tokens=False).ids for d in (docs[0], docs[500], docs[-1])]
    assert tokenizer.encode_batch(docs).to_lists() == [want[0]] * 500 + [want[1]] + [want[2]] * 500


# -- damaged and strange input -------------------------------------------------------------------------------------


def test_a_cut_or_flipped_file_is_refused_or_another_tokenizer(folder, tmp_path):
    """g306: nothing that was damaged passes for the file it was."""
    whole = (folder / "tokenizer.json").read_bytes()
    right = toktier.load(folder).fingerprint
    rng = random.Random(306)
    at = whole.index(b'"vocab"') + 100
    places = [rng.randrange(at, len(whole) - 10) for _ in range(8)]
    for k, harmed in enumerate([whole[:-1024], *(whole[:p] + bytes([whole[p] ^ 1]) + whole[p + 1 :] for p in places)]):
        path = tmp_path / f"{k}.json"
        path.write_bytes(harmed)
        try:
            found = toktier.load(path).fingerprint
        except SourceError as e:
            found = str(e)
            assert str(path) in found
        assert found != right
    lines = [base64.b64encode(t) + b" %d" % i for i, t in enumerate(families.ranks(300))]
    path = tmp_path / "cut.tiktoken"
    path.write_bytes(b"\n".join(lines)[:-5])
    with pytest.raises(SourceError, match="line 300"):
        toktier.load(path, pattern=r"\w+|\W")


def test_bytes_that_are_no_text(folder):
    """g119: random bytes are an error that names the way out; as text with escapes they are refused, or repaired."""
    raw = random.Random(388).randbytes(4096)
    tokenizer = toktier.load(folder)
    with pytest.raises(InputTypeError, match="decode it first"):
        tokenizer.encode(raw)
    with pytest.raises(InputError, match="surrogate"):
        tokenizer.encode(raw.decode("utf-8", "surrogateescape"))
    replaced = raw.decode("utf-8", "replace")
    assert tokenizer.decode(tokenizer.encode(replaced)) == tokenizer.core.reference.decode(
        tokenizer.core.reference.encode(replaced).tolist()
    )
    ranks = toktier.load("cl100k_base")
    assert ranks.decode_bytes(ranks.encode(replaced)) == replaced.encode()


def test_numbers_that_are_too_large_or_no_ids():
    """g287, g288."""
    tokenizer = toktier.load("cl100k_base")
    assert tokenizer.encode("hello world", max_length=int(1e30)).tolist() == [15339, 1917]
    assert tokenizer.decode(np.array([9906], np.int64)) == "Hello"
    for bad in ([2**32 + 9906], [True], [1.0], [2**64], [-1]):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            tokenizer.decode(bad)
