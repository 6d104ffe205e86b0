"""Archives of the log on Spark: an index that verifies every signature, and discovery in bulk over it.

It promises the same answers, to the same askers, as a live node that has read the same records: queries are `tdn/queries`' own, and whoever may not
see a topic on a node does not find it here. Exporting archives is `tdn/archive`'s.
"""
