"""Paths: a tokenizer.json, a tekken.json, a rank file, or a folder that holds one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from toktier.errors import InputError, SourceError, SourceNotFoundError
from toktier.reference import ExtraToken, TokenizerFile
from toktier.sources import huggingface, ranks, stored, tekken
from toktier.sources.source import Source

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NAMED_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


def read(path: Path, name: str | None, pattern: Any, special_tokens: Any) -> Source:
    """The source at a path.

    Raises:
      SourceNotFoundError: there is nothing at the path.
      SourceError: what is there is damaged or of no known kind.
      InputError: a pattern or special tokens for a source that has its own.
    """
    if path.is_dir():
        return _folder(path, name, pattern, special_tokens)
    content = _content(path)
    title = name or (path.parent.name if path.name in (TOKENIZER, "tiktoken.model") else path.stem) or path.stem
    if not content.strip():
        raise SourceError(f"{path}: the file is empty; it may be a download that failed, so get it anew")
    if content.startswith(b"version https://git-lfs"):
        raise SourceError(f"{path}: is a Git LFS pointer and not the file itself; run `git lfs pull`")
    if content.lstrip()[:1] == b"<":
        raise SourceError(f"{path}: holds HTML or XML, an answer of a web server and no tokenizer; get it anew")
    if content.lstrip()[:1] in (b"{", b"[") or path.suffix == ".json":
        if pattern is not None or special_tokens is not None:
            raise InputError(f"{path}: pattern= and special_tokens= are for rank files; a tokenizer.json has its own")
        return _json(path, content, title, ())
    if not ranks.looks_like_ranks(content) and path.suffix not in (".tiktoken", ".txt", ".ranks"):
        raise SourceError(
            f"{path}: is neither JSON nor a rank file (lines of `base64 rank`); a SentencePiece model has to be "
            "made into a tokenizer.json first (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    return ranks.read_file(path, content, title, pattern, special_tokens)


def _folder(folder: Path, name: str | None, pattern: Any, special_tokens: Any) -> Source:
    """A folder: its tokenizer.json with the added tokens of its tokenizer_config.json, its tekken.json or rank file."""
    if (folder / TOKENIZER).is_file():
        path, config = folder / TOKENIZER, folder / CONFIG
        if pattern is not None or special_tokens is not None:
            raise InputError(f"{path}: pattern= and special_tokens= are for rank files; a tokenizer.json has its own")
        settings = _parsed(config, _content(config)) if config.is_file() else {}
        return _json(path, _content(path), name or folder.resolve().name, config_tokens(settings, str(config)))
    there = sorted(p for p in folder.iterdir() if p.is_file())
    for kind in (
        [p for p in there if p.name.startswith("tekken") and p.suffix == ".json"],
        [p for p in there if p.suffix == ".tiktoken" or p.name in ("tiktoken.model", "qwen.tiktoken")],
    ):
        if len(kind) == 1:
            return read(kind[0], name or folder.resolve().name, pattern, special_tokens)
    shown = ", ".join(p.name for p in there[:8]) or "nothing"
    way_out = ""
    if {"vocab.json", "merges.txt"} <= {p.name for p in there}:
        way_out = (
            "; transformers makes one of vocab.json and merges.txt (AutoTokenizer.from_pretrained, save_pretrained)"
        )
    raise SourceNotFoundError(
        f"{folder}: there is no tokenizer.json, no tekken.json and not exactly one rank file (*.tiktoken), but {shown}"
        f"{way_out}"
    )


def _json(path: Path, content: bytes, name: str, extra: tuple[ExtraToken, ...] | None) -> Source:
    """A tokenizer.json or tekken.json, from the cache where it was read before."""
    recipe = TokenizerFile(str(path.resolve()), hashlib.sha256(content).hexdigest(), "", extra or ())
    # The cache is asked before the file is parsed, so for both kinds; a file is of only one.
    at = stored.key("tokenizers", "json", recipe.sha256, json.dumps(recipe.extra))
    other = tekken.key(content)
    if (known := stored.load(name, at)) is not None:
        return Source(known, recipe)
    if (known := stored.load(name, other)) is not None:
        return Source(known)
    value = _parsed(path, content)
    if tekken.looks_like_tekken(value):
        return Source(stored.keep(other, tekken.spec(value, str(path), name)))
    if "model" not in value:
        keys = ", ".join(map(repr, list(value)[:5]))
        raise SourceError(
            f"{path}: is no tokenizer.json (key 'model' is missing; there are {keys or 'no keys'}); a vocab.json "
            "goes with a merges.txt, and transformers makes a tokenizer.json of the two (save_pretrained)"
        )
    return Source(stored.keep(at, huggingface.spec(value, str(path), name, recipe)), recipe)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as e:
        raise SourceNotFoundError(f"{path}: there is no such file or folder; check the path") from e
    except OSError as e:
        raise SourceError(f"{path}: cannot be read ({e.strerror}); check its permissions") from e


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as e:
        raise SourceError(f"{path}: byte {e.start} is not UTF-8; the file is damaged, or no JSON: get it anew") from e
    except json.JSONDecodeError as e:
        cut = "the file ends too early" if e.pos >= len(e.doc.rstrip()) - 1 else "the file is damaged, or no JSON"
        raise SourceError(f"{path}: line {e.lineno}, column {e.colno}: {e.msg}; {cut}: get it anew") from e
    except (ValueError, RecursionError) as e:
        raise SourceError(f"{path}: is no JSON that can be read: {e}") from e
    if not isinstance(value, dict):
        raise SourceError(f"{path}: holds a JSON {type(value).__name__} and not an object; this is no tokenizer.json")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def config_tokens(config: dict[str, Any], where: str) -> tuple[ExtraToken, ...]:
    """The added tokens of a tokenizer_config.json, in the order in which `transformers` adds them to the file's own.

    Those of `added_tokens_decoder` come by id, then the named special tokens that are in neither.  `tokenizers` skips
    what is there already.

    Raises:
      SourceError: an entry that is no added token.
    """
    listed = config.get("added_tokens_decoder") or {}
    found: dict[str, ExtraToken] = {}
    try:
        for key in sorted(listed, key=int):
            token = _extra(listed[key])
            found.setdefault(token.content, token)
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise SourceError(f"{where}: key 'added_tokens_decoder' is no object of added tokens by id ({e})") from e
    named = [config.get(key) for key in _NAMED]
    for key in _NAMED_LISTS:
        several = config.get(key)
        named += several if isinstance(several, list) else []
    for value in named:
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            value = value["content"]
        if isinstance(value, str) and value:
            found.setdefault(value, ExtraToken(value, special=True, normalized=False, only_if_new=True))
    return tuple(found.values())


def _extra(value: dict[str, Any]) -> ExtraToken:
    content = value["content"]
    if not isinstance(content, str):
        raise TypeError(f"content is {content!r}")
    special = bool(value.get("special", False))
    flags = {"normalized": not special, **{flag: value[flag] for flag in _FLAGS if flag in value}}
    return ExtraToken(content, **{flag: bool(on) for flag, on in flags.items()})
