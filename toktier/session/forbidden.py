"""Where in a session's text a forbidden special token would stand: the engine saw but a window of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SpecialTokenError

if TYPE_CHECKING:
    from .chunks import ChunkList
    from .session import Session

WAY_OUT = (
    "make the session with special_tokens='parse' to make it its id, or with special_tokens='text' to read it as plain "
    "text (an argument of tok.session() and SessionStore(), not of a change)"
)


def reach(session: Session) -> int:
    """How far beside a change a special token may reach that the change completes, or lays bare, in characters."""
    return max((len(token.content) for token in session.tokenizer.spec.added), default=0)


def refused_change(session: Session, error: SpecialTokenError, start: int, stop: int, text: str) -> SpecialTokenError:
    """The error of a change that puts `text` in place of characters [start, stop), which has not been made."""
    most = reach(session)
    lead, tail = _before(session._chunks, start, most), _behind(session._chunks, stop, most)
    return refused(error, "the session's text would hold", text, lead, tail, start)


def refused(
    error: SpecialTokenError, what: str, text: str, lead: str = "", tail: str = "", start: int = 0
) -> SpecialTokenError:
    """The error of a session whose text has `lead`, `text` and `tail` one behind the other, `text` at `start`."""
    literal, zone = error.literal, lead + text + tail
    at = zone.find(literal, max(len(lead) - len(literal) + 1, 0)) if literal else -1
    if at < 0 and literal:  # laid bare by the change, which it does not touch
        at = zone.find(literal)
    if at < 0:  # it is spelt otherwise there, as before a normalizer
        place = f"at or beside characters {start} to {start + len(text)}"
    else:
        place = f"at character {start - len(lead) + at}"
    return SpecialTokenError(f"{what} the special token {literal!r} {place}, which it forbids: {WAY_OUT}", literal)


# A literal lies across no cut, and every chunk begins at one, or at ids given by the caller: so the chunks that the
# change touches have all of it, and these are kept where others are not (`keep_text=False`).


def _before(chunks: ChunkList, char: int, most: int) -> str:
    if char == 0:
        return ""
    k = chunks.find(char - 1)
    chunk, inside = chunks.chunks[k], char - chunks.before(k)[0]
    return "" if chunk.given else chunk.text[max(inside - most, 0) : inside]


def _behind(chunks: ChunkList, char: int, most: int) -> str:
    if char >= chunks.n_chars:
        return ""
    k = chunks.find(char)
    chunk, inside = chunks.chunks[k], char - chunks.before(k)[0]
    return "" if chunk.given else chunk.text[inside : inside + most]
