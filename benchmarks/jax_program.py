"""`toktier.jax` inside a jitted step: time, memory by XLA's account, and bytes between host and device.

    python benchmarks/jax_program.py                     # what JAX's default backend is
    python benchmarks/jax_program.py --rows 512 --length 2048 --tokenizer path/to/tokenizer.json

The step is bytes [B, L] -> encode_bytes -> pack (concatenate, then split) and stays on the device.  Beside it, in
turns: the same rows from `Tokenizer.encode_batch` and from the reference, packed with NumPy and sent to the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import _common
import jax
import numpy as np
from tqdm import tqdm

import toktier
import toktier.jax as tj


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="o200k_base")
    parser.add_argument("--corpora", help="folder of .txt files; without it, texts that every Python can make")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=1024, help="bytes of a row")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a packed row")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    tok = toktier.load(args.tokenizer)
    tables = tj.tables(tok, special_tokens="text")
    eos = tok.vocab_size
    corpora = _common.corpora(args.corpora)
    packed_rows = -(-args.rows * args.length // (2 * args.context))

    def documents() -> list[str]:
        """Fresh texts of half a row to a whole row, from all corpora in turn."""
        rng = np.random.default_rng(0)
        sizes = rng.integers(args.length // 2, args.length + 1, args.rows)
        return [corpora[k % len(corpora)].fresh(int(size)) for k, size in enumerate(sizes)]

    @jax.jit
    def step(tables: tj.Tables, data: Any, lengths: Any) -> tuple[tj.Packed, Any]:
        tokens = tj.encode_bytes(tables, data, lengths)
        return tj.pack(tokens, args.context, packed_rows, eos=eos), tokens.ok

    first = tj.batch(tok, documents(), length=args.length)
    begun = time.perf_counter()
    compiled = step.lower(tables, first.data, first.lengths).compile()
    seconds = time.perf_counter() - begun
    memory = compiled.memory_analysis()
    text_bytes = int(first.lengths.sum())
    print(_common.machine())
    print(f"{tok.spec.name}: {args.rows} rows of {args.length} bytes, {text_bytes} bytes of text")
    print(f"tables of {tables.n_bytes / 1e6:.1f} MB, sent once")
    print(f"compiled in {seconds:.1f} s (or loaded from JAX's cache)")
    if memory is not None:
        per = first.data.size
        print(
            f"XLA's account, bytes for each byte of data: temporaries {memory.temp_size_in_bytes / per:.1f}, "
            f"results {memory.output_size_in_bytes / per:.1f}"
        )

    moved: dict[str, tuple[int, int]] = {}

    def inside(texts: list[str]) -> Any:
        rows = tj.batch(tok, texts, length=args.length)
        packed, ok = step(tables, rows.data, rows.lengths)
        moved["encode_bytes and pack in one program"] = rows.data.nbytes + rows.lengths.nbytes, ok.nbytes
        assert np.asarray(ok).all()
        return packed.ids

    def on_host(texts: list[str], encode: Callable[[list[str]], list[np.ndarray]], name: str) -> Any:
        flat = np.concatenate([np.append(ids, eos) for ids in encode(texts)]).astype(np.int32)
        ids, segments, places = np.zeros((3, packed_rows * args.context), np.int32)
        ids[: len(flat)] = flat
        ends = np.flatnonzero(flat == eos)
        document = np.searchsorted(ends, np.arange(len(flat)))
        segments[: len(flat)] = document + 1
        places[: len(flat)] = np.arange(len(flat)) - np.concatenate([[0], ends + 1])[document]
        sent = jax.device_put((ids, segments, places))
        moved[name] = sum(x.nbytes for x in sent), 0
        return sent[0].reshape(packed_rows, args.context)

    reference = tok.core.reference
    names = [
        "encode_bytes and pack in one program",
        "encode_batch, packed on the host",
        "reference, packed on the host",
    ]
    ways: dict[str, Callable[[list[str]], Any]] = {
        names[0]: inside,
        names[1]: lambda t: on_host(t, lambda x: list(tok.encode_batch(x, special_tokens="text")), names[1]),
        names[2]: lambda t: on_host(t, lambda x: [reference.encode(y, "text") for y in x], names[2]),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for k in tqdm(range(args.rounds + 1), "rounds", disable=None):
        texts, ids = documents(), {}
        for name, way in ways.items():
            begun = time.perf_counter()
            ids[name] = np.asarray(jax.block_until_ready(way(texts)))
            if k:
                took[name].append(time.perf_counter() - begun)
        assert all(np.array_equal(i, ids[names[0]]) for i in ids.values()), "the ids differ"
    print(f"{'way':42}{'MB/s':>8}{'up/byte':>9}{'down/byte':>10}")
    for name in names:
        rate = text_bytes / statistics.median(took[name]) / 1e6
        up, down = moved[name]
        print(f"{name:42}{rate:8.1f}{up / text_bytes:9.2f}{down / text_bytes:10.3f}")


if __name__ == "__main__":
    main()
