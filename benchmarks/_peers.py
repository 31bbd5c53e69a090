"""Other tokenizers on the same vocabulary: each is given our tokenizer in a form that it takes, or says why it cannot.

An adapter is `build(tok, folder) -> Calls`.  It may write files to `folder`.  What is not installed raises ImportError;
what cannot take the tokenizer raises `Refused` (or an error of its own).  Special tokens in a text are not what these
benchmarks are about: adapters take the call that reads them as the reference does where there is one, else as text.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from _common import separate
from peers_tiktoken import tiktoken_twin

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


class Refused(Exception):
    """A peer's API cannot take this tokenizer."""


class Calls(NamedTuple):
    """Ids of a text as an array and as a list, whichever way the peer does each best."""

    array: Callable[[str], Any]
    list: Callable[[str], Any]


def native_list(call: Callable[[str], list[int]]) -> Calls:
    """A peer that gives lists."""
    return Calls(lambda text: np.array(call(text), np.int32), call)


def native_array(call: Callable[[str], np.ndarray]) -> Calls:
    """A peer that gives arrays."""
    return Calls(call, lambda text: call(text).tolist())


def from_buffer(call: Callable[[str], Any]) -> Callable[[str], np.ndarray]:
    """A peer that gives the bytes of a uint32 array."""
    return lambda text: np.frombuffer(call(text), np.uint32)


def tokenizer_json(tok: Tokenizer, folder: Path) -> Path:
    """The tokenizer as a tokenizer.json."""
    if tok.spec.reference != "tokenizers":
        raise Refused("it takes a tokenizer.json, and this tokenizer is a rank file")
    reference: Any = tok.core.reference
    path = folder / f"{tok.fingerprint[:16]}.json"
    if not path.exists():
        path.write_text(reference.native.to_str(), encoding="utf-8")
    return path


@functools.lru_cache(maxsize=4)
def _ranks(tok: Tokenizer) -> dict[bytes, int]:
    spec = tok.spec
    return {token: i for i in range(spec.n_ids) if (token := spec.token_bytes(i))}


def rank_file(tok: Tokenizer, folder: Path) -> Path:
    """The vocabulary as a tiktoken rank file under its own name."""
    path = folder / f"{Path(tok.spec.name).stem}.tiktoken"
    if not path.exists():
        path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for t, i in _ranks(tok).items()))
    return path


def pattern_of(tok: Tokenizer) -> str:
    """The regex of a rank file."""
    return json.loads(tok.spec.pretokenizer)["pattern"]


def tiktoken(tok: Tokenizer, folder: Path) -> Calls:
    """tiktoken itself, or an encoding over the same vocabulary; its merge rule is its own."""
    reference: Any = tok.core.reference
    encoding = reference.native if tok.spec.reference == "tiktoken" else tiktoken_twin(tok)
    if encoding is None:
        raise Refused("the pre-tokenizer is not one regex")
    return Calls(
        encoding.encode_to_numpy if tok.spec.reference != "tiktoken" else encoding.encode_ordinary,
        encoding.encode_ordinary,
    )


def fastokens(tok: Tokenizer, folder: Path) -> Calls:
    """fastokens, with or without the file's added tokens."""
    import fastokens as peer

    if tok.spec.reference == "tokenizers":
        made = peer.Tokenizer.from_file(str(tokenizer_json(tok, folder)))
    else:
        special = tok.special_tokens
        made = peer.Tokenizer.from_tiktoken(
            str(rank_file(tok, folder)), pattern=pattern_of(tok), special_tokens=special
        )
    return Calls(from_buffer(lambda text: made.encode_batch_flat([text])[0]), lambda text: made.encode(text).ids)


def gigatoken(tok: Tokenizer, folder: Path) -> Calls:
    """gigatoken; of rank files it knows the published ones by their names."""
    import gigatoken as peer

    hf = tok.spec.reference == "tokenizers"
    made = (
        peer.Tokenizer(str(tokenizer_json(tok, folder))) if hf else peer.Tokenizer.from_tiktoken(rank_file(tok, folder))
    )
    return native_array(made.encode)


def tuetoken(tok: Tokenizer, folder: Path) -> Calls:
    """tuetoken's core, which reads added tokens as text."""
    import tuetoken as peer

    made = peer.Tokenizer(str(tokenizer_json(tok, folder)))
    return Calls(from_buffer(made.encode_to_bytes), made.encode_ordinary)


def quicktok(tok: Tokenizer, folder: Path) -> Calls:
    """quicktok-v1: its own data for the published encodings, else an import, which it may refuse."""
    import quicktok as peer

    if tok.spec.reference == "tiktoken":
        made = peer.get_encoding(tok.spec.name)
    else:
        os.environ["QUICKTOK_DATA"] = str(folder)
        name = f"toktier-{tok.fingerprint[:16]}"
        with contextlib.redirect_stdout(io.StringIO()):
            peer.import_tokenizer(str(tokenizer_json(tok, folder)), name)
        made = peer.get_encoding(name)
    return Calls(lambda text: made.encode_batch([text], 1)[0], made.encode_ordinary)


def splintr(tok: Tokenizer, folder: Path) -> Calls:
    """splintr-rs; its flat form of a tokenizer.json adds special tokens, so lists are taken there."""
    import splintr as peer

    if tok.spec.reference == "tokenizers":
        return native_list(peer.from_json(str(tokenizer_json(tok, folder))).encode_raw)
    data = rank_file(tok, folder).read_bytes()
    made = peer.Tokenizer.from_bytes(data, pattern_of(tok), tok.special_tokens)
    return Calls(from_buffer(made.encode_flat), made.encode_ordinary)


PEERS: dict[str, Callable[[Any, Path], Calls]] = {
    "tiktoken": tiktoken,
    "fastokens": fastokens,
    "gigatoken": gigatoken,
    "tuetoken": tuetoken,
    "quicktok-v1": quicktok,
    "splintr-rs": splintr,
}
OURS = ("host", "device", "auto")


def own(tok: Tokenizer, engine: str) -> Calls:
    """One of toktier's engines, or the reference through it."""
    special, tok = "parse" if tok.spec.reference == "tokenizers" else "text", separate(tok)
    if engine in ("device", "auto"):
        tok.warmup()
    return native_array(lambda text: tok.encode(text, engine=engine, special_tokens=special))


def all_calls(tok: Tokenizer, folder: Path, wanted: list[str] | None) -> tuple[dict[str, Calls], dict[str, str]]:
    """(calls by name, the reference first, and why each of the others is not among them)."""
    calls, missing = {"reference": own(tok, "reference")}, {}
    for name, build in PEERS.items():
        if wanted and name not in wanted:
            continue
        try:
            made = build(tok, folder)
            made.array("a text to see that it runs")
            calls[name] = made
        except ImportError:
            missing[name] = "not installed"
        except BaseException as e:  # a panic of Rust code is no Exception
            if isinstance(e, KeyboardInterrupt):
                raise
            missing[name] = f"{type(e).__name__}: {str(e).splitlines()[0][:160] if str(e) else ''}"
    for name in OURS:
        if not wanted or name in wanted:
            calls[name] = own(tok, name)
    return calls, missing
