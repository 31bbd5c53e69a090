"""toktier inside JAX programs: bytes to ids as a pure function, and batches for training.

`encode_bytes` is the tokenizer as a function of arrays, `tables` its tables; `cut`, `batch`, `plan` and `fallback` are
the host's side; `pack`, `pad` and `truncate` make rows of one length, `span_mask` and `part_ids` loss masks.  See
docs/jax.md.  (`import jax` in the modules of this package is JAX itself; `import toktier` loads nothing of this.)
"""

from toktier.jax.encode import Spans, Tokens, encode_bytes
from toktier.jax.launch import Reason, trace_count
from toktier.jax.pack import Packed, pack, pad, take, truncate
from toktier.jax.parts import Parts, cut
from toktier.jax.spans import part_ids, span_mask
from toktier.jax.tables import Tables, tables
from toktier.jax.text import Rows, batch, fallback, plan

__all__ = [
    "Packed",
    "Parts",
    "Reason",
    "Rows",
    "Spans",
    "Tables",
    "Tokens",
    "batch",
    "cut",
    "encode_bytes",
    "fallback",
    "pack",
    "pad",
    "part_ids",
    "plan",
    "span_mask",
    "tables",
    "take",
    "trace_count",
    "truncate",
]
