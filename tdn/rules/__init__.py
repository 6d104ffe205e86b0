"""The state machine: `apply(state, record) -> outcome`, the same on every node, and the read-only questions about the state.

Pure. No clock, randomness, configuration or trust file: whatever it needs was logged before. New kinds of record are functions in a
table (`apply.py`), not special cases.
"""
