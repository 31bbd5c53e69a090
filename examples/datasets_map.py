"""Tokenizes a dataset of Hugging Face `datasets`, in batches and in several processes.

    python examples/datasets_map.py --processes 2

`map` keeps its results by a fingerprint of the function.  A toktier tokenizer is hashed by its source, so the same
tokenizer gives the same fingerprint in every process and on every day, however often it was used before, and another
tokenizer gives another.

Two ways: `encode_rows` is the short one; `encode_arrow` hands the flat ids and offsets of a batch to Arrow as they are,
so that no Python object is made for a token.
"""

import argparse
import time
from pydoc_data.topics import topics
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

import toktier


def encode_rows(rows: dict[str, Any], tok: toktier.Tokenizer) -> dict[str, Any]:
    """For `map(batched=True)`: {"text": [str, ...]} to {"ids": [int32[k], ...]}."""
    return {"ids": list(tok.encode_batch(rows["text"], special_tokens="text"))}


def encode_arrow(table: pa.Table, tok: toktier.Tokenizer) -> pa.Table:
    """For `with_format("arrow").map(batched=True)`: the column "text" to a column "ids" of list<int32>."""
    batch = tok.encode_batch(table["text"].to_pylist(), special_tokens="text")
    offsets = pa.array(batch.offsets.astype(np.int32))  # a batch of 2**31 tokens would need large_list
    return pa.table({"ids": pa.ListArray.from_arrays(offsets, pa.array(batch.ids))})


def main() -> None:
    """Runs both, and says whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokenizer", default="cl100k_base", help="anything that toktier.load takes")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    tok = toktier.load(args.tokenizer)
    dataset = datasets.Dataset.from_dict({"text": list(topics.values())})
    options = {
        "batched": True,
        "batch_size": 16,
        "num_proc": args.processes,
        "fn_kwargs": {"tok": tok},
        "remove_columns": ["text"],
    }
    results = {}
    for function, form in ((encode_rows, None), (encode_arrow, "arrow")):
        began = time.perf_counter()
        done = dataset.with_format(form).map(function, **options).with_format("numpy")
        results[function.__name__] = [ids.tolist() for ids in done["ids"]]
        tokens = sum(map(len, results[function.__name__]))
        seconds = time.perf_counter() - began
        print(f"{function.__name__}: {len(done)} rows, {tokens:,} tokens, {seconds:.2f} s, {done._fingerprint}")
    print("the two agree" if results["encode_rows"] == results["encode_arrow"] else "the two DIFFER")


if __name__ == "__main__":
    main()
