"""What is in a store's tables of topics, read from the tables themselves: for tests that nothing is missing and nothing stays behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any


def contents(path: Path) -> dict[str, list[Any]]:
    """Every row of the derived tables, and of the text index every (trigram, topic)."""
    db = sqlite3.connect(path)
    try:
        db.execute("CREATE VIRTUAL TABLE temp.instances USING fts5vocab(main, topic_text, 'instance')")
        found = {
            table: sorted(db.execute(f"SELECT * FROM {table}"), key=repr)
            for table in ("topics", "listed", "sealed_for", "property_values")
        }
        # A trigram stands in a topic once or often: which topics is all that the index is asked.
        return found | {"topic_text": sorted(set(db.execute("SELECT term, doc FROM temp.instances")))}
    finally:
        db.close()


def owners(path: Path) -> dict[str, set[int]]:
    """Of which topics there is anything in each table that has rows for each."""
    found = contents(path)
    places = {"topics": 0, "sealed_for": 1, "property_values": 2, "topic_text": 1}
    return {table: {row[place] for row in found[table]} for table, place in places.items()}


def check_sound(path: Path) -> None:
    """SQLite's own judgement of the file and of the text index."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.execute("INSERT INTO topic_text(topic_text) VALUES('integrity-check')")
        db.rollback()
    finally:
        db.close()
