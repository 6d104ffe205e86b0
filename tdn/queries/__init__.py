"""What a discovery query means: one definition per language, `compile(text) -> Query`.

Pure. Indexes and engines elsewhere are accelerators; the matcher here has the last word.
"""
