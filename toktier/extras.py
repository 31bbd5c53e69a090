"""Optional packages: imported by the part that needs one, with the command that installs it where it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from toktier.errors import MissingExtraError


def need(package: str, extra: str, part: str) -> Any:
    """Imports an optional package.

    Args:
      package: the module to import, such as "grain" or "pyarrow.parquet".
      extra: the extra of toktier that brings it.
      part: what needs it, for the message.

    Returns:
      the module.

    Raises:
      MissingExtraError: it is not installed.  An installed package that fails to import raises its own error.
    """
    top = package.split(".")[0]
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        if e.name != top:
            raise
        raise MissingExtraError(
            f"{part} needs the package {top!r}, which is not installed; install it: pip install 'toktier[{extra}]'"
        ) from e
