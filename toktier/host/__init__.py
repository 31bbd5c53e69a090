"""The host engine: NumPy and dictionaries over the same tables as the device program.

engine.py   what is asked when, ids and ends
seamed.py   a short text in one pass of tiktoken's loop, pieces and merges
compiled.py the pieces of a text in one call of that loop
bulk.py     those of a long text, where many were met before
cache.py    ids of pieces and segments seen before, bounded
whole.py    pieces that are a token, many at a time
short.py    merges of one piece: a list for a short one, a heap for a long one
long.py     very long pieces in parts, put together at their seams
rounds.py   merges of many pieces, or of one very long one, several merges a round
"""

from toktier.host.engine import HostEngine

__all__ = ["HostEngine"]
