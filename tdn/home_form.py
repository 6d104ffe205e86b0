"""Of which form a home is: what the operator's commands and an entity's, which knows nothing else of a home, look at before they read in it.

A newer home than this build knows is refused, never guessed at.
"""

from __future__ import annotations

import json
from pathlib import Path

from tdn.errors import UsageError

#: Counts changes of the home that an older build would misread. A home without the file is of the first.
HOME_VERSION = 1
FILE = "home.json"


def version_of(home: Path) -> int:
    """Which changes of the home's form it has seen, or UsageError when its file does not say."""
    path = home / FILE
    try:
        version = json.loads(path.read_text("utf-8"))["version"]
    except FileNotFoundError:
        return 1
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; run as the owner of the home, or name another home") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{path} does not say of which version the home is; write {{"version": {HOME_VERSION}}}') from error
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise UsageError(f"{path}: a version is a whole number")
    return version


def require_version(home: Path) -> None:
    if (version := version_of(home)) > HOME_VERSION:
        raise UsageError(
            f"the home {home} is of version {version}; this build knows {HOME_VERSION}. Install the newer build, or name another home"
        )
