"""Added tokens on the device: literals found in the bytes of many texts as the reference finds them.

Two searches, leftmost-longest each, as in `toktier.added`: the literals that are matched against the raw text, and
those that are matched against the normalized text in what is left.  The literals of a search are a trie, its edges a
perfect hash.  A place is looked at if its two bytes begin a literal (the `<|` of most vocabularies is rare in text);
the trie is walked from all such places of a tile at once, and the overlaps among what they find are resolved from left
to right.

What is matched is overwritten with 0xFF, the boundary, in place: nothing moves, so offsets stay those of the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from toktier.added import FORBID, LOOK_AROUND, TAKE, AddedMatcher, Mode
from toktier.bands import band, padded
from toktier.bpe import perfect_hash
from toktier.bpe.lookup import HashTable
from toktier.compact import positions

Table = Any  # a NumPy array until it is put on the device, a jax.Array from then on

RAW, NORMALIZED = 0, 1  # the two searches
BOUNDARY = 0xFF
_NOTHING = 0  # node 0 is no node
_TILE = 4096
_LEAST_BITS = 13
_LEAST_NODES = 1 << 13


class Literals(NamedTuple):
    """The tries of both searches.

    edge: node << 8 | byte -> node; value: int32[nodes, 3], an `added.Outcome` (all 0 where no literal ends); begins:
    bool[2, 65536], two bytes that begin a literal; root: int32[2].
    """

    edge: HashTable
    value: Table
    begins: Table
    root: Table


class Found(NamedTuple):
    """What a search leaves.

    data: uint8[N] without the literals; token: int32[N], id + 1 at the first byte of each literal; stop: int32[N], the
    place behind it there; refused: uint8[N], FORBID or LOOK_AROUND where a literal begins with which this cannot go on.
    """

    data: Array
    token: Array
    stop: Array
    refused: Array


def build(matcher: AddedMatcher, mode: Mode) -> Literals:
    """Tries for the added tokens of a spec in a mode (NumPy arrays)."""
    value: list[tuple[int, int, int]] = [(0, 0, 0)]
    children: list[dict[int, int]] = [{}]
    begins = np.zeros((2, 256, 256), bool)
    roots = []
    for which, outcomes in enumerate(matcher.outcomes(mode)):
        root = len(value)
        roots.append(root)
        value.append((0, 0, 0))
        children.append({})
        for literal, outcome in outcomes.items():
            node = root
            for byte in literal:
                if byte not in children[node]:
                    children[node][byte] = len(value)
                    value.append((0, 0, 0))
                    children.append({})
                node = children[node][byte]
            value[node] = outcome
            begins[which, literal[0], literal[1] if len(literal) > 1 else slice(None)] = True
    edges = [(node << 8 | byte, child) for node, kids in enumerate(children) for byte, child in kids.items()]
    keys = np.array([key for key, _ in edges], np.uint32)
    hashed, slot = perfect_hash.build(keys.reshape(-1, 1), _LEAST_BITS)
    rows = np.full((1 << hashed.slot_bits, 2), 0xFFFFFFFF, np.uint32)
    rows[slot, 0] = keys
    rows[slot, 1] = [child for _, child in edges]
    return Literals(
        HashTable(hashed.displacement, rows, np.asarray(perfect_hash.start_word(hashed.seed))),
        padded(np.array(value, np.int32), 0, band(len(value), _LEAST_NODES), 3),
        begins.reshape(2, -1),
        np.array(roots, np.int32),
    )


def cut(t: Literals, which: int, found: Found) -> Found:
    """One search, over what the one before has left.

    Args:
      which: RAW or NORMALIZED (static).
      found: uint8[N] bytes with a boundary behind every row, and what is known so far.
    """
    data = found.data
    pair = data.astype(jnp.int32) << 8 | jnp.concatenate([data[1:], jnp.full(1, BOUNDARY, jnp.uint8)])
    wanted = t.begins[which][pair]
    return lax.cond(jnp.any(wanted), lambda f: _search(t, t.root[which], wanted, f), lambda f: f, found)


def _search(t: Literals, root: Array, wanted: Array, found: Found) -> Found:
    text, n = found.data, found.data.shape[0]
    tile = min(_TILE, n)
    place, count = positions(wanted)
    place = jnp.pad(place, (0, tile))

    def step(k, carry):
        found, done = carry
        start = lax.dynamic_slice(place, (k * tile,), (tile,))
        valid = k * tile + jnp.arange(tile) < count
        node = _longest(t, text, start, jnp.where(valid, root, _NOTHING))
        token, size, act = (t.value[node, column] for column in range(3))
        chosen = _leftmost(start, start + size, size > 0, done)
        done = jnp.maximum(done, jnp.max(jnp.where(chosen, start + size, 0)))
        return _enter(found, start, jnp.where(chosen, size, 0), token, act), done

    steps = (count + (tile - 1)) // tile
    return lax.fori_loop(0, steps, step, (found, jnp.int32(0)))[0]


def _longest(t: Literals, text: Array, start: Array, node: Array) -> Array:
    """int32[tile]: the node of the longest literal that begins at each place, 0 where there is none."""

    def anywhere(carry):
        return jnp.any(carry[1] != _NOTHING)

    def one_byte(carry):
        depth, node, best = carry
        byte = text[jnp.minimum(start + depth, text.shape[0] - 1)].astype(jnp.uint32)
        key = node.astype(jnp.uint32) << 8 | byte
        row = t.edge.row_of((key,))
        same = (node != _NOTHING) & (t.edge.rows[row, 0] == key)
        node = jnp.where(same, t.edge.rows[row, 1].astype(jnp.int32), _NOTHING)
        return depth + 1, node, jnp.where(t.value[node, 2] != 0, node, best)

    return lax.while_loop(anywhere, one_byte, (jnp.int32(0), node, jnp.zeros_like(node)))[2]


def _leftmost(start: Array, end: Array, match: Array, done: Array) -> Array:
    """bool[tile]: the matches that a search from left to right takes; `done` is where the last one ended.

    A match is certain if none before it, certain or not, reaches into it; what reaches into a certain one before it
    falls.  The first of those that are left is always certain.
    """

    def reach(ends):
        return jnp.concatenate([jnp.zeros(1, jnp.int32), lax.cummax(ends)[:-1]])

    def unsettled(carry):
        return jnp.any(carry[0])

    def settle(carry):
        open_, chosen = carry
        certain = open_ & (start >= reach(jnp.where(open_, end, 0)))
        chosen |= certain
        return open_ & ~certain & (start >= reach(jnp.where(chosen, end, 0))), chosen

    return lax.while_loop(unsettled, settle, (match & (start >= done), jnp.zeros_like(match)))[1]


def _enter(found: Found, start: Array, size: Array, token: Array, act: Array) -> Found:
    """Writes down the matches of a tile; size 0 is none."""
    n = found.data.shape[0]
    taken = (size > 0) & (act == TAKE)
    at = jnp.where(taken, start, n)

    def any_left(carry):
        return jnp.any(taken & (size > carry[0]))

    def blank(carry):
        depth, data = carry
        inside = jnp.where(taken & (depth < size), start + depth, n)
        return depth + 1, data.at[inside].set(jnp.uint8(BOUNDARY), mode="drop", unique_indices=True)

    refused = (size > 0) & ((act == FORBID) | (act == LOOK_AROUND))
    return Found(
        lax.while_loop(any_left, blank, (jnp.int32(0), found.data))[1],
        found.token.at[at].set(token + 1, mode="drop", unique_indices=True),
        found.stop.at[at].set(start + size, mode="drop", unique_indices=True),
        found.refused.at[jnp.where(refused, start, n)].set(act.astype(jnp.uint8), mode="drop", unique_indices=True),
    )
