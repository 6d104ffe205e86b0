"""The log exported for those who read it in bulk and in years to come: immutable segments of records, each named by a signed entry of a manifest.

It promises that what an archive holds is the log, record by record, none lost or doubled, however often and from wherever it was exported, and
that whoever has the trust roots can check all of it offline. Indexing and searching are left to `spark/`.
"""
