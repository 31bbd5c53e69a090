"""--special-tokens-file: the special tokens of a rank file, which holds none itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toktier.errors import InputError

_EXAMPLE = '{"<|endoftext|>": 100257}'


def read(path: str) -> dict[str, int]:
    """Special tokens and their ids, from a JSON object.

    Raises:
      InputError: the file holds something else, or a token twice.
    """
    try:
        found = json.loads(Path(path).read_bytes().decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: byte {e.start} is not UTF-8; it must be a JSON object such as {_EXAMPLE}") from e
    except json.JSONDecodeError as e:
        raise InputError(
            f"{path}: line {e.lineno} column {e.colno} is not JSON: {e.msg}; it must be an object such as {_EXAMPLE}"
        ) from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: {e}; it must be a JSON object such as {_EXAMPLE}") from e
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds a JSON {type(found).__name__}; it must be an object such as {_EXAMPLE}")
    for token, value in found.items():
        if not token:
            raise InputError(f"{path}: holds the empty string, which is in every text; leave it out")
        if type(value) is not int or value < 0:
            raise InputError(f"{path}: the id of {token!r} is {json.dumps(value):.40}; it must be a number, 0 or more")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} stands there twice")
        found[key] = value
    return found
