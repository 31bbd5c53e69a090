"""Few shapes: device tables are padded to bands, so that tokenizers of like size share one compiled program."""

from __future__ import annotations

import numpy as np


def band(size: int, *bands: int) -> int:
    """The smallest band that holds `size`; beyond the last one the next power of two."""
    for edge in bands:
        if size <= edge:
            return edge
    return 1 << (size - 1).bit_length()


def padded(array: np.ndarray, fill: int | bool, *shape: int) -> np.ndarray:
    """The array in the corner of a larger one."""
    out = np.full(shape, fill, array.dtype)
    out[tuple(slice(0, n) for n in array.shape)] = array
    return out
