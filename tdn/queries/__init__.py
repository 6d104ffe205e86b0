"""What a discovery query means: one definition per language, `compile_query(language, text) -> Query`.

Pure. Indexes and engines elsewhere are accelerators that work from a query's clue; the matcher here has the last word.
"""
