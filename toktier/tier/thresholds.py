"""From which size on a text goes to the device."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Sizes by which the router decides, in UTF-8 bytes of what is to be tokenized (for a session: of its window).

    Attributes:
      device: from this size on a text goes to the device.
      join: from this size on a text joins a launch that is being gathered anyway.
      source: "given", "default", "stored" or "measured".
    """

    device: int
    join: int
    source: str = "given"
