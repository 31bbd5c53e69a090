"""The vocabularies inside the package: nothing is downloaded, and a damaged file is refused.

`data/NAME.bz2` holds the tokens of a rank file in rank order: the 256 single bytes, then the others with 0xFF between
them (a byte that no longer token holds).  `data/NAME.json` holds the pattern, the special tokens, and the SHA-256 that
tiktoken expects of the rank file; the rank file is written out again and checked at each unpacking.
"""

from __future__ import annotations

import binascii
import bz2
import hashlib
import importlib.resources
import json
from typing import NamedTuple

from toktier.errors import SourceError, SourceNotFoundError

NAMES = ("o200k_base", "cl100k_base")
_SEPARATOR = b"\xff"


class Vocabulary(NamedTuple):
    """What an embedded vocabulary is, before its ranks are unpacked.

    Attributes:
      name: the name tiktoken knows it by.
      sha256: digest (hex) of the rank file.
      pattern: the regular expression that cuts pieces.
      special_tokens: ids of the special tokens.
    """

    name: str
    sha256: str
    pattern: str
    special_tokens: dict[str, int]


def describe(name: str) -> Vocabulary:
    """Pattern, special tokens and digest of an embedded vocabulary.

    Raises:
      SourceNotFoundError: there is none of this name.
    """
    if name not in NAMES:
        raise SourceNotFoundError(f"name={name!r} is not embedded in the package; embedded are {', '.join(NAMES)}")
    fields = json.loads(_data(f"{name}.json"))
    return Vocabulary(fields["name"], fields["sha256"], fields["pattern"], fields["special_tokens"])


def tokens(name: str) -> list[bytes]:
    """The tokens of an embedded vocabulary; the rank of each is its index.

    Raises:
      SourceNotFoundError: there is no vocabulary of this name.
      SourceError: the packaged file is damaged.
    """
    expected = describe(name).sha256
    try:
        packed = bz2.decompress(_data(f"{name}.bz2"))
    except (OSError, ValueError, EOFError) as e:
        raise _damaged(name, expected) from e
    found = [packed[i : i + 1] for i in range(256)] + packed[256:].split(_SEPARATOR)
    if hashlib.sha256(_rank_file(found)).hexdigest() != expected:
        raise _damaged(name, expected)
    return found


def load_ranks(name: str) -> dict[bytes, int]:
    """Ranks by token of an embedded vocabulary, as tiktoken takes them; errors as `tokens`."""
    return {token: rank for rank, token in enumerate(tokens(name))}


def _rank_file(found: list[bytes]) -> bytes:
    """The rank file that holds these tokens."""
    encode = binascii.b2a_base64
    return b"".join([b"%s %d\n" % (encode(token, newline=False), rank) for rank, token in enumerate(found)])


def _data(file: str) -> bytes:
    return importlib.resources.files("toktier").joinpath("data", file).read_bytes()


def _damaged(name: str, expected: str) -> SourceError:
    return SourceError(
        f"toktier/data/{name}.bz2 is damaged: it does not unpack to the rank file with SHA-256 {expected}; "
        "install toktier again (pip install --force-reinstall toktier)"
    )
