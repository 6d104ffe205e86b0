"""How much is drawn at random: little in `make test`, which is run all day; much in `make test-long` (TDN_TESTS=long)."""

from __future__ import annotations

import os

LONG = os.environ.get("TDN_TESTS") == "long"

#: The everyday share.
_SHARE = 6
_FEWEST = 25


def examples(count: int) -> int:
    """So many in the long form; a share of it every day, and never so few that nothing is shown."""
    return count if LONG else min(count, max(_FEWEST, count // _SHARE))
