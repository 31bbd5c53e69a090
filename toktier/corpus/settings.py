"""What a corpus run is asked for, checked before anything is read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from toktier.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

FORMATS = ("auto", "text", "jsonl", "parquet")
ERRORS = ("strict", "skip", "replace")
WRITES = ("both", "parquet", "flat")
DTYPES = ("auto", "uint16", "uint32", "int32")
ENGINES = ("auto", "host", "device", "reference", "ray")
_CHOICES = {"format": FORMATS, "errors": ERRORS, "write": WRITES, "dtype": DTYPES, "engine": ENGINES}

# What has a say in how the work is done, and none in what comes out.
_HOW = ("engine", "processes", "ray_address", "restart")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a corpus is read, encoded and written.

    Attributes:
      format: of the inputs; "auto" goes by each name: `.jsonl` and `.ndjson`, `.parquet`, anything else is text.
      lines: each line of a text file is a document, without its line end.
      separator: documents of a text file are divided by this string, which belongs to none.
      field, column: where a JSON object and a Parquet row have their text.
      id_field: field or column whose value becomes the document's `id` (string or integer).
      errors: what becomes of a document that has no text: "strict" stops and names its place, "skip" leaves it out and
        lists it, "replace" puts U+FFFD where bytes are not UTF-8, lists that, and stops at what has no text at all.
      add_special_tokens, special_tokens: as for `Tokenizer.encode`.
      bos, eos: a token in front of and behind every document: its text (an added token's) or its id.
      write: "parquet", "flat" or "both".
      dtype: of the flat form; "auto" is uint16 where all ids fit, else int32.
      shard_bytes: bytes of input that make one shard, about.
      engine: of `Tokenizer.encode_batch`; "ray" spreads the work over a Ray cluster.
      processes: workers; 0 is one a core (one in all for engine="device"; as many as the cluster has cores for "ray").
      ray_address: the cluster; None is the one that runs here, or else one made for the run.
      restart: begin anew where an unfinished or another run's output is.
    """

    format: str = "auto"
    lines: bool = False
    separator: str | None = None
    field: str = "text"
    column: str = "text"
    id_field: str | None = None
    errors: str = "strict"
    add_special_tokens: bool = False
    special_tokens: str | None = None
    bos: str | None = None
    eos: str | None = None
    write: str = "both"
    dtype: str = "auto"
    shard_bytes: int = 32 << 20
    engine: str = "auto"
    processes: int = 0
    ray_address: str | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name}={getattr(self, name)!r} is not known; use one of {', '.join(known)}")
        for name, least in (("shard_bytes", 1), ("processes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise InputTypeError(f"{name} must be an int, not {type(value).__name__}")
            if value < least:
                raise InputError(f"{name}={value} is too small; it is {least} or more")
        if self.lines and self.separator is not None:
            raise InputError("lines and separator exclude each other: lines=True divides a file at its line ends")
        if self.separator == "":
            raise InputError("separator='' divides nothing; leave it out for one document a file")
        if self.engine == "device" and self.processes > 1:
            raise InputError(
                f"processes={self.processes} with engine='device': one process drives the device; leave processes out"
            )

    @property
    def parquet(self) -> bool:
        """Whether Parquet shards are written."""
        return self.write in ("both", "parquet")

    @property
    def flat(self) -> bool:
        """Whether the flat form is written."""
        return self.write in ("both", "flat")


def recipe(settings: Settings, tok: Tokenizer) -> dict[str, Any]:
    """All that decides about the output beside the inputs, JSON-ready: what a resumed run must have in common.

    Raises:
      InputError: a token, mode or dtype that this tokenizer does not have.
    """
    chosen = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name not in _HOW}
    chosen["special_tokens"] = tok._mode(settings.special_tokens)  # type: ignore[arg-type]
    chosen["dtype"] = _dtype(settings.dtype, tok)
    for name in ("bos", "eos"):
        chosen[name] = None if getattr(settings, name) is None else token_id(tok, name, getattr(settings, name))
    return {
        "tokenizer": {
            "fingerprint": tok.fingerprint,
            "reference": f"{tok.spec.reference} {tok.spec.reference_version}",
            "vocab_size": tok.vocab_size,
        },
        "options": chosen,
    }


def token_id(tok: Tokenizer, name: str, given: str | int) -> int:
    """The id of a token given by its text or by its id.

    Raises:
      InputError: there is no such token.
    """
    ids = {t.content: t.id for t in tok.spec.added}
    if given in ids:
        return ids[str(given)]
    if str(given).isascii() and str(given).isdigit():
        if int(given) < tok.vocab_size:
            return int(given)
        raise InputError(f"{name}={given} is no id of {tok.spec.name}, which has {tok.vocab_size}")
    some = ", ".join(list(ids)[:8]) or "none"
    raise InputError(f"{name}={given!r} is no added token of {tok.spec.name} (it has {some}); an id is taken too")


def _dtype(chosen: str, tok: Tokenizer) -> str:
    fits = tok.vocab_size <= 1 << 16
    if chosen == "auto":
        return "uint16" if fits else "int32"
    if chosen == "uint16" and not fits:
        raise InputError(f"dtype='uint16' does not hold the {tok.vocab_size} ids of {tok.spec.name}; use int32")
    return chosen
