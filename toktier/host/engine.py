"""The host engine: a buffer in, ids and ends out, in NumPy, dictionaries and one compiled loop.

A text of up to 64 KiB goes through tiktoken's loop in one pass, pieces and merges (seamed.py).  Where that cannot be,
or the text is longer, its pieces are found by a pattern for `re` if it is short (pretok/written.py), else by NumPy
(pretok/host_scan.py), and their ids come from

    tiktoken's loop over the effective merges, all pieces in one call (compiled.py), behind a table of pieces met
    before where the text is long (bulk.py);
    or, as long as so little text was met that the loop does not pay, and for pieces that it cannot take, from a
    dictionary of pieces met before (cache.py), the vocabulary (whole.py), and merges in Python and NumPy (short.py,
    rounds.py, long.py) of pieces or of the segments into which they fall (segments.py).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Sized
from typing import Protocol

import numpy as np

from toktier import chunks
from toktier.bpe.segments import segmenter_of
from toktier.bpe.tables import BpeTables
from toktier.cores import side_by_side
from toktier.encoded import Encoded
from toktier.host.bulk import BulkMerger
from toktier.host.cache import ENTRIES, PieceCache
from toktier.host.compiled import CompiledMerger, all_fit, effective_ranks, fits
from toktier.host.rounds import RoundMerger
from toktier.host.seamed import SeamedMerger
from toktier.host.short import PieceMerger
from toktier.host.whole import NONE, find_whole
from toktier.locks import MakingLock
from toktier.pretok import seamed
from toktier.pretok.host_scan import piece_bounds
from toktier.pretok.seamed import SeamedText
from toktier.pretok.tables import PretokTables
from toktier.pretok.written import spelled

_SLAB = 1 << 17  # pieces held as Python objects at a time
_MANY = 1 << 14  # pieces of one call for which a copy of the cache pays
_FEW = 16  # pieces for which one merge after the other beats one look-up of all as whole tokens
_SINGLY = 3072  # bytes of pieces to merge; from here on NumPy rounds beat plain Python
_SINGLY_WARM = 6000  # the same once plain Python knows most pairs
_WARM_PAIRS = 1 << 13  # that many
_COMPILE = 1 << 14  # pieces merged, from which on it pays to make the compiled merger
_COMPILE_BYTES = 1 << 17  # bytes of texts, likewise
_PART = 1 << 18  # bytes of a long text that go to one core at a time
_PATTERN = 1 << 12  # bytes of a text up to which a pattern finds its pieces sooner than NumPy
_SEAMED = 1 << 16  # bytes of a text up to which one pass over it is quicker than a look at each piece
_FOUR = b"\xf0\xf1\xf2\xf3\xf4"  # first bytes of characters of four
_LONG_TEXT = 1 << 14  # bytes of a text from which on its pieces are looked up before any is merged
_CALL = 1 << 11  # new pieces of one call up to which a dictionary of all tokens is the quicker way
_VOCABULARY = 1 << 12  # so many of them, and it is made: 30 ms, 15 to 25 MB
_HAN = (
    0xE3  # first bytes from here on are mostly Han, Kana, Hangul: scripts of so many characters that segments are short
)
_WIDE = 64  # bytes of such pieces from which on segments pay
_WARM = 3 << 14  # bytes of them merged as they are before the tables of segments are worth their 12 ms


class Tables(Protocol):
    """What the engine needs."""

    @property
    def pretok(self) -> PretokTables:
        """The pre-tokenizer."""

    @property
    def bpe(self) -> BpeTables:
        """The vocabulary."""


class HostEngine:
    """Exact ids without a device; safe from any thread, picklable.

    Args:
      tables: `tables.pretok` and `tables.bpe`.
      cache_entries: pieces whose ids are remembered, in each of two generations.  No value changes a result.
    """

    def __init__(self, tables: Tables, cache_entries: int = ENTRIES):
        self.tables = tables
        self._pretok, self._bpe = tables.pretok, tables.bpe
        self._length = np.ascontiguousarray(tables.bpe.token_length, np.int64)
        self._single = PieceMerger(tables.bpe)
        self._rounds = RoundMerger(tables.bpe, self._single)
        self._making = MakingLock()
        self._compiled: CompiledMerger | None = None
        self._merges, self._bytes = 0, 0  # pieces and bytes of text met without it
        # no piece begins inside a character, and no character is in none
        self._sews = tables.pretok is not None and not (tables.pretok.inner.any() or tables.pretok.drops)
        written = tables.pretok.written if self._sews else ""
        self._ascii_pieces: Callable[[str], list[str]] | None = None
        if written:
            self._ascii_pieces = spelled(written, tables.pretok, 128).findall
        self._seamed: SeamedMerger | None = None
        self._unsewn = "no pattern without look-ahead is proven for this pre-tokenizer"  # why there is none, if so
        self._pieces: Callable[[str], list[str]] | None = None  # the same for all but the rarest characters
        self._wide_bytes = 0  # merged so far; threads may lose a count, which matters little
        self._whole_only = _tokens(tables.bpe, tables.bpe.only_whole)
        self._vocabulary: dict[bytes, bytes] = {}
        self._new_pieces = 0
        self.cache, self.segments = PieceCache(cache_entries), PieceCache(cache_entries)

    def __reduce__(self):
        return HostEngine, (self.tables, self.cache.entries)

    def encode_buffer(self, buffer: np.ndarray | bytes) -> Encoded:
        """Ids of a buffer.

        Args:
          buffer: uint8[n] or bytes; UTF-8, 0xFF as boundary.

        Returns:
          Encoded(ids int32[k], ends int64[k]).
        """
        data, raw = _both(buffer)
        merger = self._merger_for(data)
        if merger is None or len(data) < 2 * _PART:
            return self._encode(data, raw, merger)
        parts = chunks.plan(self._pretok, raw, _PART)
        found = list(side_by_side(lambda part: self._encode(data[slice(*part)], raw[slice(*part)], merger), parts))
        ends = [encoded.ends + start for encoded, (start, _) in zip(found, parts, strict=True)]
        return Encoded(np.concatenate([encoded.ids for encoded in found]), np.concatenate(ends))

    def encode_short(self, buffer: np.ndarray | bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids int32[k], lengths int64[k] in bytes) of a buffer in one pass; None where `encode_buffer` has to."""
        data = buffer if isinstance(buffer, bytes) else _both(buffer)[0]
        merger, seamed = self._compiled, self._seamed
        if merger is None or seamed is None or not merger.usable or len(data) > _SEAMED or b"\0" in data:
            return None
        return seamed.encode(data)

    def _encode(self, data: bytes, raw: np.ndarray, merger: CompiledMerger | None) -> Encoded:
        """Ids of a buffer, on one core."""
        if merger and self._seamed and len(data) <= _SEAMED:
            found = self._seamed.encode(data)
            if found:
                return Encoded(found[0], _ends(found[1], data, raw))
        if self._ascii_pieces is not None and len(data) <= _PATTERN:
            words = self._words(data)
            if words is not None:
                ids = merger.encode_words(words) if merger else None
                if ids is None:
                    ids = np.frombuffer(bytearray().join(self.encode_pieces(list(map(str.encode, words)))), np.int32)
                return Encoded(ids, _ends(self._length.take(ids), data, raw))
        starts, ends = piece_bounds(self._pretok, raw)
        if merger:
            ids = (self._bulk if len(data) >= _LONG_TEXT else merger).encode_text(raw, starts, ends)
            if ids is not None:
                return Encoded(ids, self._ends_of_pieces(ids, starts, ends))
        ids = np.frombuffer(self._packed(data, starts, ends), np.int32)
        return Encoded(ids, self._ends_of_pieces(ids, starts, ends))

    def _words(self, data: bytes) -> list[str] | None:
        """The pieces of a short text, by the pattern; None where there is none for its characters."""
        find = self._ascii_pieces
        assert find is not None
        if data.isascii():
            return find(data.decode())
        texts = data.split(b"\xff")
        if not all(map(bytes.isascii, texts)):
            if self._pieces is None or len(data.translate(None, _FOUR)) < len(data):
                return None
            find = self._pieces
        return [piece for text in texts for piece in find(text.decode())]

    def warmup(self) -> None:
        """Make what many texts need: the compiled merger and its pattern (0.4 to 0.9 s, 100 to 135 MB)."""
        self._compile()

    def explain(self) -> str:
        """How texts are encoded at present, and why not more quickly."""
        merger, seamed = self._compiled, self._seamed
        if not self._sews:
            return "plain Python and NumPy: pieces begin inside characters, or leave some out"
        if merger is None:
            return f"plain Python and NumPy, until {_COMPILE_BYTES >> 10} KiB of text were met or warmup() was called"
        if not merger.usable:
            return "plain Python and NumPy: tiktoken's loop was found to differ"
        if seamed is not None and seamed.usable:
            return f"texts of up to {_SEAMED >> 10} KiB in one pass of tiktoken's loop, longer ones by pieces in it"
        why = self._unsewn if seamed is None else "its pattern was found to differ"
        return f"pieces one by one in tiktoken's loop; not texts as a whole: {why}"

    def piece_marks(self, buffer: np.ndarray | bytes) -> np.ndarray:
        """int64[p]: byte offset of every piece's start."""
        return np.asarray(piece_bounds(self._pretok, _both(buffer)[1])[0], np.int64)

    def encode_pieces(self, pieces: list[bytes]) -> list[bytes]:
        """Ids of each piece as packed int32 bytes; none is empty, each is a stretch of UTF-8."""
        known = self.cache.young
        try:
            return list(map(known.__getitem__, pieces))
        except KeyError:
            pass
        found = self._work_out(set(pieces).difference(known))
        if len(pieces) < _MANY:
            return [known.get(p) or found[p] for p in pieces]
        return list(map((known | found).__getitem__, pieces))

    def _packed(self, data: bytes, starts: np.ndarray, ends: np.ndarray) -> bytearray:
        """The ids of pieces, packed and joined, some at a time."""

        def slabs() -> Iterable[bytes]:
            for at in range(0, len(starts), _SLAB):
                bounds = zip(starts[at : at + _SLAB].tolist(), ends[at : at + _SLAB].tolist(), strict=True)
                yield b"".join(self.encode_pieces([data[i:j] for i, j in bounds]))

        return bytearray().join(slabs())

    # ---- pieces ----

    def _work_out(self, pieces: set[bytes]) -> dict[bytes, bytes]:
        """Ids of pieces that the young cache does not hold; they are in it afterwards, as far as it takes them."""
        found = self.cache.recall(pieces)
        if found:
            pieces = pieces.difference(found)
        vocabulary = self._vocabulary or self._met(len(pieces))
        rest: list[bytes]
        if vocabulary:
            rest = list(pieces.difference(vocabulary))
            for p in pieces.difference(rest) if rest else pieces:
                found[p] = vocabulary[p]
        elif len(pieces) <= _FEW and sum(map(len, pieces)) <= _FEW * 16:
            # all but these are what their merges give, whole tokens too
            whole_only = self._whole_only
            rest = list(pieces.difference(whole_only))
            for p in pieces.difference(rest) if len(rest) < len(pieces) else ():
                found[p] = whole_only[p]
        else:
            all_of = list(pieces)
            whole = find_whole(self._bpe, all_of)
            packed = whole.tobytes()
            found.update(zip(all_of, [packed[i : i + 4] for i in range(0, len(packed), 4)], strict=True))
            rest = [all_of[k] for k in np.flatnonzero(whole == NONE).tolist()]
        found.update(zip(rest, self._merged(rest), strict=True))
        self.cache.add(found)
        return found

    def _met(self, count: int) -> dict[bytes, bytes]:
        """All tokens, once so many new pieces were met that a dictionary of them pays; till then none."""
        self._new_pieces += count if count <= _CALL else 0
        if self._new_pieces >= _VOCABULARY:
            self._vocabulary = _tokens(self._bpe, self._bpe.whole)
        return self._vocabulary

    def _merged(self, pieces: list[bytes]) -> Iterable[bytes]:
        """What merges make of pieces."""
        if b"".join(pieces).isascii():
            return self._merged_apart(pieces)
        wide = sum([len(p) for p in pieces if max(p) >= _HAN])
        self._wide_bytes += wide
        if wide < _WIDE or self._wide_bytes < _WARM:
            return self._merged_apart(pieces)
        segments, counts = self._segments_of(pieces)
        known = self.segments.young
        missing = set(segments).difference(known)
        found = self.segments.recall(missing)
        rest = [s for s in missing if s not in found]
        found.update(zip(rest, self._merged_apart(rest), strict=True))
        self.segments.add(found)
        if len(segments) < _MANY:
            packed = [found[s] if s in found else known[s] for s in segments]
        else:
            packed = list(map((known | found).__getitem__, segments))
        return _grouped(packed, map(range, counts))

    def _merged_apart(self, pieces: list[bytes]) -> Iterable[bytes]:
        if self._compiled is not None and self._compiled.usable:
            if not pieces or all_fit(pieces):
                return self._compiled.encode(pieces)
            fit = [p for p in pieces if fits(p)]
            found = dict(zip(fit, self._compiled.encode(fit), strict=True))
            rest = [p for p in pieces if p not in found]
            found.update(zip(rest, self._merged_plainly(rest), strict=True))
            return [found[p] for p in pieces]
        self._merges += len(pieces)
        if self._merges >= _COMPILE:
            self._compile()
        return self._merged_plainly(pieces)

    def _merged_plainly(self, pieces: list[bytes]) -> Iterable[bytes]:
        if sum(map(len, pieces)) <= (_SINGLY if self._single.pairs_known < _WARM_PAIRS else _SINGLY_WARM):
            encode = self._single.encode
            return [array("i", encode(p)).tobytes() for p in pieces]
        return [ids.tobytes() for ids in self._rounds.encode(pieces)]

    def _compile(self) -> None:
        """Make what merges many pieces quickest; a thread that comes meanwhile goes on without."""
        if self._compiled is not None or not self._making.attempt():
            return
        try:
            ranks = effective_ranks(self._bpe)
            merger = CompiledMerger(self._bpe, self._single.encode, self._whole_only, ranks)
            self._bulk = BulkMerger(self._bpe, merger)
            if self._ascii_pieces is not None:
                self._pieces = spelled(self._pretok.written, self._pretok).findall
                if sewn := seamed.proven(self._pretok):
                    try:
                        self._seamed = SeamedMerger(ranks, SeamedText(sewn, self._pretok), merger, self._words)
                    except ValueError as e:  # a pattern may be larger than its engine takes
                        self._unsewn = f"tiktoken's engine refuses the pattern: {e}"
            self._compiled = merger
        finally:
            self._making.release()

    def _compile_aside(self) -> None:
        """`_compile` in a thread: no short text waits the better part of a second for what later ones need."""
        if not self._making.attempt():
            return
        self._making.release()
        # tiktoken imports it, and it cannot be imported any more once the interpreter has begun to end
        import concurrent.futures.thread  # noqa: F401

        with contextlib.suppress(RuntimeError):  # the interpreter is about to end: nothing comes later
            threading.Thread(target=self._compile, name="compiled-loop").start()

    def _merger_for(self, data: bytes) -> CompiledMerger | None:
        """The compiled merger, if it can take a text and so much text was met that it pays to make it."""
        if not self._sews or b"\0" in data:
            return None
        self._bytes += len(data)
        if self._compiled is None and self._bytes >= _COMPILE_BYTES:
            if len(data) < _COMPILE_BYTES:
                self._compile_aside()
            else:
                self._compile()
        return self._compiled if self._compiled is not None and self._compiled.usable else None

    def _segments_of(self, pieces: list[bytes]) -> tuple[list[bytes], list[int]]:
        return segmenter_of(self._bpe).split(pieces)

    def _ends_of_pieces(self, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Byte end of each token: the running sum of lengths, plus what lies in no piece before it."""
        token_ends = self._length.take(ids).cumsum()
        if len(starts):
            outside = starts.astype(np.int64)
            outside[1:] -= ends[:-1]  # bytes in front of each piece that are in none
            gap = np.flatnonzero(outside)
            if len(gap):
                skipped = np.cumsum(outside[gap])
                _skip(token_ends, starts[gap] - skipped, skipped)
        return token_ends


def _ends(lengths: np.ndarray, data: bytes, raw: np.ndarray) -> np.ndarray:
    """Byte end of each token, from the bytes of each, where all bytes but boundaries are in tokens."""
    token_ends = lengths.cumsum(dtype=np.int64)
    if b"\xff" in data:
        hole = np.flatnonzero(raw == 0xFF)
        _skip(token_ends, hole - np.arange(len(hole)), np.arange(1, len(hole) + 1))
    return token_ends


def _skip(token_ends: np.ndarray, covered: np.ndarray, skipped: np.ndarray) -> None:
    """Move ends, in place, behind the gaps in front of them.

    Args:
      token_ends: running sum of the tokens' lengths.
      covered: bytes of tokens in front of each gap; skipped: bytes of all gaps up to this one.
    """
    before = np.searchsorted(covered, token_ends)  # gaps in front of each token: those with covered < its end
    token_ends += np.append(0, skipped)[before]


def _tokens(tables: BpeTables, chosen: np.ndarray) -> dict[bytes, bytes]:
    """The bytes of some tokens, and the id of each, packed."""
    ids = np.flatnonzero(chosen)
    at, stop = tables.token_offsets[ids].tolist(), tables.token_offsets[ids + 1].tolist()
    blob, packed = tables.token_blob.tobytes(), ids.astype(np.int32).tobytes()
    values = [packed[k : k + 4] for k in range(0, len(packed), 4)]
    return dict(zip([blob[i:j] for i, j in zip(at, stop, strict=True)], values, strict=True))


def _grouped(packed: list[bytes], groups: Iterable[Sized]) -> list[bytes]:
    """The ids of each group, joined: the first takes as many of `packed` as it has members, and so on."""
    rest = iter(packed)
    return [next(rest) if (n := len(g)) == 1 else b"".join(itertools.islice(rest, n)) for g in groups]


def _both(buffer: np.ndarray | bytes) -> tuple[bytes, np.ndarray]:
    if isinstance(buffer, bytes):
        return buffer, np.frombuffer(buffer, np.uint8)
    data = buffer.base
    if isinstance(data, bytes) and len(data) == buffer.nbytes and buffer.dtype == np.uint8:  # as `frombuffer` gives it
        return data, buffer
    raw = np.ascontiguousarray(buffer, np.uint8)
    return raw.tobytes(), raw
