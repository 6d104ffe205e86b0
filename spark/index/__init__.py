"""From an archive to an index: one pass that verifies every signature and divides what the records did into tables, added once however often it is tried."""
