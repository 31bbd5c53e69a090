"""The host engine: NumPy and dictionaries over the same tables as the device program.

engine.py   pieces, the cache, ids and ends
cache.py    ids of pieces seen before, bounded
whole.py    pieces that are a token, many at a time
short.py    merges of one piece: a list for a short one, a heap for a long one
rounds.py   merges of many pieces, or of one very long one, several merges a round
"""

from toktier.host.engine import HostEngine

__all__ = ["HostEngine"]
