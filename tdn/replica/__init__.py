"""The log followed into a store: what every process that needs the network's state runs, node and guard alike.

It reads, applies and commits in order, checks that store and log agree before anything is served, and tells who waits for an outcome.
"""
