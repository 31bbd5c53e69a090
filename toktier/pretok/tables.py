"""The arrays of one pre-tokenizer: symbols, a left and a right automaton, the output table, certified cuts."""

from __future__ import annotations

import dataclasses

import numpy as np

INSIDE, START, DROPPED = 0, 1, 2  # values of PretokTables.out


@dataclasses.dataclass(frozen=True, eq=False)
class PretokTables:
    """A pre-tokenizer as a bimachine.  docs/architecture.md gives shapes and meaning of every field."""

    block: np.ndarray
    symbol: np.ndarray
    left_next: np.ndarray
    right_next: np.ndarray
    out: np.ndarray
    left_elements: np.ndarray
    left_product: np.ndarray
    left_symbol: np.ndarray
    right_elements: np.ndarray
    right_product: np.ndarray
    right_symbol: np.ndarray
    cut: np.ndarray
    inner: np.ndarray
    prefix_space: bool
    representatives: str
    digest: str
    written: str = ""
    seamed: str = ""

    @property
    def drops(self) -> bool:
        """Are there texts with characters that are in no piece?"""
        return bool((self.out == DROPPED).any())

    @property
    def n_symbols(self) -> int:
        """Number of symbols S; S itself stands for a continuation byte, S + 1 for the boundary."""
        return self.left_next.shape[1]
