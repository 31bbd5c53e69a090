"""The host engine: NumPy and dictionaries over the same tables as the device program.

engine.py   what is asked when, ids and ends
units.py    a buffer cut where certified, so that what was seen before is looked up at once
shapes.py   where the pieces of a unit begin, remembered by its symbols
cache.py    ids of units, pieces and segments seen before, bounded
segments.py pieces cut where no token lies across
whole.py    pieces that are a token, many at a time
short.py    merges of one piece: a list for a short one, a heap for a long one
long.py     very long pieces in parts, put together at their seams
rounds.py   merges of many pieces, or of one very long one, several merges a round
"""

from toktier.host.engine import HostEngine

__all__ = ["HostEngine"]
