"""A guard whose clock is behind, started in the place of a network's own: `skewed.py SECONDS <what tdn takes>`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tdn.cli import main, serve
from tdn.guard.service import Guard

if __name__ == "__main__":
    behind = timedelta(seconds=float(sys.argv.pop(1)))
    late: Any = partial(Guard, clock=lambda: datetime.now(UTC) - behind)
    setattr(serve, "Guard", late)  # noqa: B010  # a name that the module only uses: nobody else gets the late one
    main.run()
