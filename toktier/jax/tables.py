"""Everything that `encode_bytes` reads, as one pytree of device arrays: an argument of the compiled program."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from toktier.bpe.lookup import HashTable, LookupTables
from toktier.errors import EngineError
from toktier.jax.checks import Kinds, kinds
from toktier.jax.literals import Literals, build
from toktier.pretok.scan import Direction, ScanTables
from toktier.program import DeviceTables

if TYPE_CHECKING:
    from toktier.added import Mode
    from toktier.core import Core
    from toktier.tokenizer import Tokenizer


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("program", "literals", "kinds", "missing"),
    meta_fields=("prefix_space", "needs_plan"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """The tables of one tokenizer in one mode of special tokens.  A pytree; `Tokenizer.tables` or `tables` makes it.

    Arrays are padded to bands, so tokenizers of like size have tables of one shape and share a compiled program.

    Attributes:
      program: what the device program reads; the same arrays that `engine="device"` uses.
      literals: the added tokens.
      kinds: what NFC would do to each code point.
      missing: bool[256], the bytes that no token stands for.
      prefix_space: static; a space goes in front of each text that does not begin with one.
      needs_plan: static; only the reference can run the normalizer, so `plan` must prepare the texts.
    """

    program: DeviceTables
    literals: Literals
    kinds: Kinds
    missing: Any
    prefix_space: bool
    needs_plan: bool

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))


def tables(tok: Tokenizer, *, special_tokens: Mode | None = None) -> Tables:
    """The tables of a tokenizer, on the default device.

    Args:
      tok: the tokenizer.
      special_tokens: what becomes of special tokens in the text, as for `Tokenizer.encode`; None is the reference's own
        default.  The mode is data: tables of other modes run through the same compiled program.

    Raises:
      EngineError: the reference runs this tokenizer.
    """
    mode = tok._mode(special_tokens)
    core = tok.core
    if core.reason:
        raise EngineError(f"{tok.spec.name} has no tables for JAX: {core.reason}; tok.encode can take it")
    return core._made(f"jax tables {sorted(mode) if isinstance(mode, frozenset) else mode}", lambda: _made(core, mode))


def _made(core: Core, mode: Mode) -> Tables:
    missing = np.zeros(256, bool)
    missing[list(core.missing.values)] = True
    of_nfc = kinds(core.normalizer.kind == "nfc")
    literals, of_points, lacking = jax.device_put((build(core.added, mode), of_nfc, jnp.asarray(missing)))
    return Tables(
        core.device.tables,
        literals,
        of_points,
        lacking,
        core.tables.pretok.prefix_space,
        core.normalizer.kind == "reference",
    )


for _class in (HashTable, LookupTables, Direction, ScanTables, DeviceTables, Literals, Kinds):
    jax.export.register_namedtuple_serialization(_class, serialized_name=f"toktier.{_class.__name__}")
jax.export.register_pytree_node_serialization(
    Tables,
    serialized_name="toktier.Tables",
    serialize_auxdata=lambda aux: bytes(aux),
    deserialize_auxdata=lambda raw: tuple(map(bool, raw)),
)
