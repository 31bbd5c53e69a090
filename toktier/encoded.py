"""What an engine gives back for a buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Encoded(NamedTuple):
    """Tokens of a buffer, in order.

    Attributes:
      ids: int32[k].
      ends: int64[k], the byte offset in the buffer behind each token (exclusive).
    """

    ids: np.ndarray
    ends: np.ndarray
