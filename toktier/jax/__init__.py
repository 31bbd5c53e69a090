"""toktier inside JAX programs: bytes to ids as a pure function, and batches for training.

`encode_bytes` is the tokenizer as a function of arrays, `tables` its tables.  See docs/jax.md.  (`import jax` in the
modules of this package is JAX itself; nothing here is loaded by `import toktier`.)
"""

from toktier.jax.encode import Reason, Spans, Tokens, encode_bytes, trace_count
from toktier.jax.tables import Tables, tables

__all__ = ["Reason", "Spans", "Tables", "Tokens", "encode_bytes", "tables", "trace_count"]
