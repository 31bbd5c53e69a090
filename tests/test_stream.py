"""Files in chunks: whatever the chunk's size, the ids are those of the whole text, and memory follows the chunk."""

from __future__ import annotations

import errno
import io
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest

import toktier
from toktier import npy, stream
from toktier.errors import EngineError, InputError, InputTypeError, SpecialTokenError

# What is easy to get wrong at a seam: literals and their neighbours, marks that reorder, blanks, digits, line ends.
SEAMS = [
    "<|im_start|>user\n a <|im_end|> \n<|endoftext|>",
    "<|im_start", "|>", "<mask>  ", "  <mask>", "e\u0301\u0323\u0315", "\u1100\u1161\u11a8", "\u212b",
    "1234567 12 ", "     ", "\n\n \n", "\r\n", "don't I'LL ", " words go on ", "中文字符，", "ça va ", "\u00a0", "a",
]  # fmt: skip


class Blocks(io.RawIOBase):
    """A stream that gives as many bytes as it likes, up to what is asked for, and has neither size nor name."""

    def __init__(self, data: bytes, seed: int) -> None:
        self.left, self.rng = data, random.Random(seed)

    def read(self, size: int = -1) -> bytes:
        size = self.rng.randint(1, size)
        block, self.left = self.left[:size], self.left[size:]
        return block


@pytest.mark.parametrize("family", families.FAMILIES)
def test_chunks_of_any_size_give_the_ids_of_the_whole(family: str, tmp_path: Path) -> None:
    made = families.tokenizer(family)
    tok = toktier.load(made)
    rng = random.Random(family)
    text = "".join(rng.choices(SEAMS, k=400)) + "".join(t[:300] for t in families.texts().values())
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    for add in (False, True):
        want = made.encode(text, add_special_tokens=add).ids
        for size in (1, 7, 64, 997, 1 << 20):
            got = tok.encode_file(path, chunk_bytes=size, add_special_tokens=add, special_tokens="parse")
            assert got.array().tolist() == want, size
    for seed in range(3):
        ids = tok.encode_file(Blocks(text.encode(), seed), chunk_bytes=200, special_tokens="parse")
        assert ids.array().tolist() == made.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("engine", ["host", "device", "reference"])
def test_every_engine_and_mode(engine: str, corpus: dict[str, str], tmp_path: Path) -> None:
    tok = toktier.load(families.encoding("o200k"))
    text = "".join(corpus[k] + "<|endoftext|>" for k in ("english", "chinese", "code"))
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    for mode in ("parse", "text", {"<|endoftext|>"}):
        want = tok.encode(text, special_tokens=mode, engine="host")  # type: ignore[arg-type]
        got = tok.encode_file(path, special_tokens=mode, engine=engine, chunk_bytes=5000)  # type: ignore[arg-type]
        assert np.array_equal(got.array(), want)
    with pytest.raises(SpecialTokenError, match=r"text.*<\|endoftext\|>.*offsets count from character \d+"):
        tok.encode_file(path, engine=engine, chunk_bytes=100).array()


def test_chunks_are_many_and_lose_nothing(corpus: dict[str, str]) -> None:
    tok = toktier.load(families.tokenizer("llama3"))
    text = "".join(corpus.values())
    blocks = [text[i : i + 500] for i in range(0, len(text), 500)]
    found = list(stream.apart(blocks, lambda: stream.cut_rules(tok)))
    assert "".join(found) == text
    assert all(found)
    assert max(map(len, found)) < 1200
    assert list(stream.apart(blocks, None)) == [text]
    assert list(stream.apart([], None)) == []


def test_a_run_without_cuts_is_one_chunk() -> None:
    tok = toktier.load(families.tokenizer("llama3"))
    blocks = ["x y", *["a" * 1000] * 20, " b c d e f"]
    found = list(stream.apart(blocks, lambda: stream.cut_rules(tok)))
    assert "".join(found) == "".join(blocks)
    assert max(map(len, found)) > 20_000


def test_without_certified_cuts_the_file_is_encoded_whole(tmp_path: Path) -> None:
    config = json.loads(families.tokenizer_json("gpt2"))
    config["pre_tokenizer"], config["model"]["byte_fallback"] = None, True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    tok = toktier.load(path)
    assert tok.explain().reason
    text = "hello world " * 50
    ids = tok.encode_file(io.BytesIO(text.encode()), chunk_bytes=16, add_special_tokens=True)
    assert [i.tolist() for i in ids] == [tok.encode(text, add_special_tokens=True).tolist()]
    with pytest.raises(EngineError):
        tok.encode_file(path, engine="device").array()


def test_saved_ids_are_a_plain_npy_file(corpus: dict[str, str], tmp_path: Path) -> None:
    tok = toktier.load(families.tokenizer("qwen3"))
    text, target = "".join(corpus.values()), tmp_path / "ids.npy"
    seen: list[int] = []
    ids = tok.encode_file(io.BytesIO(text.encode()), chunk_bytes=1000, progress=seen.append)
    count = ids.save(target)
    stored = np.load(target, mmap_mode="r")
    assert stored.dtype == np.int32
    assert len(stored) == count
    assert np.array_equal(stored, tok.encode(text))
    assert sum(seen) == ids.bytes_read == len(text.encode())
    assert ids.array().tolist() == []  # a stream is read once
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"byte 11 \(0xff\).*errors='replace'"):
        tok.encode_file(io.BytesIO(b"hello world\xff")).save(tmp_path / "other.npy")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_bytes_that_are_no_text(size: int) -> None:
    tok = toktier.load(families.tokenizer("gpt2"))
    data = "héé 中文".encode() + b"abc\xe4\xb8def \xf0\x9f\x98\x80 \xff end \xe4\xb8"
    with pytest.raises(InputError, match=r"byte 15 \(0xe4\)"):
        tok.encode_file(io.BytesIO(data), chunk_bytes=size).array()
    ids = tok.encode_file(io.BytesIO(data), chunk_bytes=size, errors="replace").array()
    assert np.array_equal(ids, tok.encode(data.decode("utf-8", "replace")))


def test_an_empty_file() -> None:
    for family in families.FAMILIES[:6]:
        made = families.tokenizer(family)
        for add in (False, True):
            ids = toktier.load(made).encode_file(io.BytesIO(b""), add_special_tokens=add).array()
            assert ids.dtype == np.int32
            assert ids.tolist() == made.encode("", add_special_tokens=add).ids


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"chunk_bytes": 0}, InputError, "chunk_bytes=0"),
        ({"chunk_bytes": 1.5}, InputTypeError, "chunk_bytes"),
        ({"errors": "ignore"}, InputError, "errors='ignore'"),
        ({"engine": "gpu"}, InputError, "engine='gpu'"),
        ({"special_tokens": "all"}, InputError, "special_tokens='all'"),
        ({"file": 7}, InputTypeError, "file must be a path"),
    ],
)
def test_options_are_checked_before_anything_is_read(options: dict[str, Any], error: type, says: str) -> None:
    tok = toktier.load(families.tokenizer("gpt2"))
    with pytest.raises(error, match=says):
        tok.encode_file(**{"file": io.BytesIO(b"a"), **options})


def test_a_text_stream_and_a_missing_file_are_named(tmp_path: Path) -> None:
    tok = toktier.load(families.tokenizer("gpt2"))
    with pytest.raises(InputTypeError, match="binary"):
        tok.encode_file(io.StringIO("text")).array()  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"no\.txt"):
        tok.encode_file(tmp_path / "no.txt").array()


class Counted(io.RawIOBase):
    """Holds the header and counts the rest, so that a file of any size can be written."""

    def __init__(self) -> None:
        self.header, self.size, self.at = b"", 0, 0

    def write(self, data: Any) -> int:
        n = memoryview(data).nbytes
        if self.at == 0:
            self.header = bytes(data)
        self.at += n
        self.size = max(self.size, self.at)
        return n

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset
        return offset


def test_more_than_two_billion_ids_do_not_overflow() -> None:
    """The writer is fed with as many ids as no int32 can count."""
    file, block = Counted(), np.zeros(1 << 22, np.int32)
    writer = npy.NpyWriter(file)  # type: ignore[arg-type]
    for _ in range(1025):
        writer.write(block)
    assert writer.close() == 1025 << 22 > 1 << 31
    assert file.size == len(file.header) + 4 * (1025 << 22)
    header = io.BytesIO(file.header)
    assert np.lib.format.read_magic(header) == (1, 0)
    assert np.lib.format.read_array_header_1_0(header) == ((1025 << 22,), False, np.dtype("<i4"))


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    tok = toktier.load("o200k_base")
    target = tmp_path / "no" / "ids.npy"
    with pytest.raises(FileNotFoundError, match="folder is not there: make it first") as missing:
        tok.encode_file(io.BytesIO(b"abc")).save(target)
    assert missing.value.filename == str(target)
    with pytest.raises(IsADirectoryError, match="name a file in it") as folder:
        tok.encode_file(io.BytesIO(b"abc")).save(tmp_path)
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(OSError, match="make room there") as full, npy.complete_file(tmp_path / "ids.npy"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(tmp_path / "ids.npy")
    unread = tmp_path / "input.txt"
    with pytest.raises(OSError, match=r"input\.txt"), npy.complete_file(tmp_path / "ids.npy"):
        raise OSError(errno.EIO, "Input/output error", str(unread))
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_and_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    tok = toktier.load("o200k_base")
    file, link, pipe = tmp_path / "ids.npy", tmp_path / "link.npy", tmp_path / "pipe"
    link.symlink_to(file)
    tok.encode_file(io.BytesIO(b"hello world")).save(link)
    assert link.is_symlink()
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        assert tok.encode_file(io.BytesIO(b"hello world")).save(pipe) == 2
    assert read.result() == file.read_bytes()
    assert pipe.is_fifo()
    assert np.load(file).tolist() == [24912, 2375]
