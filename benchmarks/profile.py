"""Where the time of the device program goes: each stage compiled by itself, beside the bytes it must move.

    python benchmarks/profile.py                                      # o200k_base; English, code and Chinese
    python benchmarks/profile.py --tokenizer PATH/tokenizer.json --corpora DIR --bytes 1000000

*floor*: the bytes that a stage must at least read and write for what is in this text (not for its capacity), at the
bandwidth of one pass over memory, measured first.  The sum of the stages is more than the whole program, which has no
border between them.  *kernels* and *loops*: places in the compiled stage, however often a loop runs them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from _common import corpora, machine, print_table


def main() -> int:
    """Run and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", default="o200k_base", help="what toktier.load takes")
    p.add_argument("--corpora", help="folder of .txt files  [texts made from the Python installation]")
    p.add_argument("--only", type=lambda s: s.split(","), help="names of texts, comma separated")
    p.add_argument("--bytes", type=int, help="of text in the buffer  [one launch as large as they come]")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--json", help="also write everything measured to this file")
    args = p.parse_args()
    import jax
    from _stages import HEADER, PASS, bandwidth, rows

    from toktier import device

    print("  ".join(f"{k}: {v}" for k, v in machine().items()), f" backend: {jax.default_backend()}", flush=True)
    capacities = device.CAPACITIES.get(jax.default_backend(), device.CAPACITIES["default"])
    size = args.bytes or capacities[-1] - 16
    speed = bandwidth(PASS)
    print(f"one pass over {PASS / 2**20:.0f} MiB reads and writes {speed / 1e9:.1f} GB/s", flush=True)
    found = []
    for corpus in corpora(args.corpora, args.only):
        table, figures = rows(args.tokenizer, corpus, size, speed, args.repeat)
        found.append(figures)
        print(f"\n{corpus.name}, {figures['bytes']} bytes")
        print_table(HEADER, table)
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": machine(), "bandwidth": speed, "rows": found}, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
