"""Optional packages: imported when a part that needs one is used, with the command to install it where it is missing."""

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
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.split(".")[0] != package.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{part} needs the package {package.split('.')[0]!r}, which is not installed: pip install 'toktier[{extra}]'"
        ) from e
