"""Work that cannot be forked safely: its import leaves a thread behind."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()


def make(argument: object) -> None:
    raise AssertionError("never called")
