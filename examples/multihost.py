"""Several processes tokenize their own documents and feed one global array.

    python examples/multihost.py --processes 2 --devices 2

starts two processes on this machine, with two (virtual CPU) devices each.  On a real cluster each host runs one
process and `jax.distributed.initialize()` finds the others; the rest is the same:

1. process p of n takes the documents p, p + n, p + 2n, ... and makes rows of them;
2. all agree on the number of batches, since a process that goes on alone would wait for the others forever;
3. `jax.make_array_from_process_local_data` puts each process's rows on its own devices: no row is sent anywhere.

With `--on-device` the text itself is what is put on the devices, and each tokenizes its own rows inside one compiled
program (`toktier.jax.encode_bytes` under `jax.shard_map`); compiling it takes a minute on a CPU.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

DOCUMENTS = list(topics.values())
ROWS, LENGTH = 4, 128  # of a process's batch


def main() -> None:
    """Starts the processes, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2, help="virtual CPU devices of a process")
    parser.add_argument("--steps", type=int, default=3, help="batches, at most")
    parser.add_argument("--tokenizer", default="cl100k_base", help="anything that toktier.load takes")
    parser.add_argument("--on-device", action="store_true", help="put bytes on the devices and tokenize there, too")
    parser.add_argument("--out", type=Path, help="folder for the global batches (.npy) and the states (.json)")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    if args.process is not None:
        process(args)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        args.port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={args.devices}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, *sys.argv, "--port", str(args.port), "--process"]
    children = [subprocess.Popen([*command, str(p)], env=env) for p in range(args.processes)]
    try:
        while None in (codes := [child.poll() for child in children]) and not any(codes):
            time.sleep(0.05)
    finally:
        for child in children:  # one that failed leaves the others waiting for it
            child.kill()
            child.wait()
    sys.exit(int(any(codes)))


def batches(tok, process: int, processes: int):
    """The batches of one process: {"ids", "segment_ids", "positions"}, each int32[ROWS, LENGTH]."""
    import grain

    from toktier.grain import Pack, TokenizeBatch

    mine = grain.MapDataset.source(DOCUMENTS)[process::processes]
    elements = mine.batch(4, batch_fn=list).map(TokenizeBatch(tok, special_tokens="text")).to_iter_dataset()
    eos = next(iter(tok.special_tokens.values()))
    return Pack(elements, LENGTH, eos=eos).batch(ROWS, drop_remainder=True)


def process(args: argparse.Namespace) -> None:
    """One of the processes."""
    import jax

    if args.processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.process)

    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    import toktier

    tok = toktier.load(args.tokenizer)
    mine = batches(tok, jax.process_index(), jax.process_count())
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    there = sum(1 for _ in mine)
    steps = min(args.steps, int(np.min(multihost_utils.process_allgather(np.array(there)))))
    count = jax.jit(lambda batch: (batch["segment_ids"] > 0).sum())

    iterator = iter(mine)
    for step in range(steps):
        local = next(iterator)
        batch = jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, rows), local)
        tokens = int(count(batch))
        shards = sorted((s.index[0].start or 0, s.data.shape[0]) for s in batch["ids"].addressable_shards)
        print(
            f"process {jax.process_index()}, step {step}: global {batch['ids'].shape}, {tokens} tokens, mine {shards}"
        )
        if args.out:
            whole = multihost_utils.process_allgather(batch, tiled=True)
            if jax.process_index() == 0:
                np.save(args.out / f"{step}.npy", np.stack([whole[k] for k in ("ids", "segment_ids", "positions")]))
    if args.out:
        state = {"state": iterator.get_state(), "batches": there}
        (args.out / f"process-{jax.process_index()}.json").write_text(json.dumps(state))
    if args.on_device:
        on_device(tok, mesh)


def on_device(tok, mesh) -> None:
    """The first ROWS documents of each process as bytes on its devices, tokenized there."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from toktier.jax import encode_bytes

    texts = [text[:500] for text in DOCUMENTS[jax.process_index() :: jax.process_count()][:ROWS]]
    raw = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    data, lengths = np.zeros((ROWS, 1024), np.uint8), np.array([len(r) for r in raw], np.int32)
    for row, own in zip(data, raw, strict=True):
        row[: len(own)] = own
    split, whole = PartitionSpec("data"), PartitionSpec()
    encode = jax.shard_map(
        lambda tables, data, lengths: encode_bytes(tables, data, lengths, max_tokens=512),
        mesh=mesh,
        in_specs=(whole, split, split),
        out_specs=split,
        check_vma=False,  # the tokenizer's loops are not typed by how values vary over devices
    )
    sharding = NamedSharding(mesh, split)
    put = [jax.make_array_from_process_local_data(sharding, x) for x in (data, lengths)]
    tokens = jax.jit(encode)(tok.tables, *put)
    mine = jax.tree.map(lambda x: np.concatenate([np.asarray(s.data) for s in x.addressable_shards]), tokens)
    same = [ids[:n].tolist() == tok.encode(t).tolist() for ids, n, t in zip(mine.ids, mine.count, texts, strict=True)]
    print(f"process {jax.process_index()}: {sum(same)} of {len(same)} texts tokenized on its devices as on the host")
    assert all(same)
    assert mine.ok.all()


if __name__ == "__main__":
    main()
