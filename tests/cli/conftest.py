"""What the unit tests make records with is here too."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest imports tests by file (importlib mode), so helper modules need a place on the path.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))
