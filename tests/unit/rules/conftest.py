"""The model of hierarchies and collections, and what makes requests about them, are modules beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
