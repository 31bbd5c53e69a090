"""Arrays of a learned bimachine for the engines: transition monoids, certified cuts, digest."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import NamedTuple

import numpy as np

from toktier.pretok.cuts import certified_cuts
from toktier.pretok.failure import LearnError
from toktier.pretok.tables import PretokTables

MAX_ELEMENTS = 4096


class Core(NamedTuple):
    """What is stored of a pre-tokenizer; everything else follows from it.  Fields as in PretokTables."""

    block: np.ndarray
    symbol: np.ndarray
    left_next: np.ndarray
    right_next: np.ndarray
    out: np.ndarray
    inner: np.ndarray
    representatives: str
    written: str = ""
    seamed: str = ""


class Monoid(NamedTuple):
    """`elements: uint8[M, Q]` maps of states, `product[M, M]` (first, then), `symbol[S + 2]` element of each symbol."""

    elements: np.ndarray
    product: np.ndarray
    symbol: np.ndarray


def transition_monoid(transitions: np.ndarray) -> Monoid:
    """The maps that words make of the states of `transitions: uint8[Q, S]`.

    Element 0 is the identity, 1 the constant 0.  Raises `LearnError` above 4096 elements.
    """
    states, symbols = transitions.shape
    generators = [transitions[:, x].tobytes().ljust(256, b"\0") for x in range(symbols)]
    elements = [bytes(range(states)), bytes(states)]
    index = {e: i for i, e in reversed(list(enumerate(elements)))}
    for element in elements:
        for generator in generators:
            longer = element.translate(generator)
            if longer not in index:
                if len(elements) == MAX_ELEMENTS:
                    raise LearnError(f"pretokenizer: a transition monoid of more than {MAX_ELEMENTS} elements")
                index[longer] = len(elements)
                elements.append(longer)
    kind = np.uint8 if len(elements) <= 256 else np.uint16
    tables = [e.ljust(256, b"\0") for e in elements]
    product = np.array([[index[a.translate(b)] for b in tables] for a in elements], kind)
    of_symbol = [index[transitions[:, x].tobytes()] for x in range(symbols)]
    array = np.frombuffer(b"".join(elements), np.uint8).reshape(-1, states)
    return Monoid(array, product, np.array([*of_symbol, 0, 1], kind))


def assemble(core: Core, prefix_space: bool = False) -> PretokTables:
    """The full tables of a stored core."""
    left, right = transition_monoid(core.left_next), transition_monoid(core.right_next)
    tables = PretokTables(
        block=core.block,
        symbol=core.symbol,
        left_next=core.left_next,
        right_next=core.right_next,
        out=core.out,
        left_elements=left.elements,
        left_product=left.product,
        left_symbol=left.symbol,
        right_elements=right.elements,
        right_product=right.product,
        right_symbol=right.symbol,
        cut=certified_cuts(core.left_next, core.right_next, core.out),
        inner=core.inner,
        prefix_space=prefix_space,
        representatives=core.representatives,
        written=core.written,
        seamed=core.seamed,
        digest="",
    )
    return dataclasses.replace(tables, digest=tables_digest(tables))


def tables_digest(tables: PretokTables) -> str:
    """sha256 (hex) over all arrays and flags."""
    h = hashlib.sha256()
    for field in dataclasses.fields(tables):
        value = getattr(tables, field.name)
        if field.name in ("digest", "written", "seamed"):  # patterns say nothing that the automata do not
            continue
        h.update(field.name.encode())
        if isinstance(value, np.ndarray):
            h.update(str((value.dtype.str, value.shape)).encode())
            h.update(np.ascontiguousarray(value).tobytes())
        else:
            h.update(repr(value).encode())
    return h.hexdigest()
