"""A node's view of the log in SQLite: records, facts and what discovery searches, committed together with the log position.

Implements the rules' State. It decides nothing: what to write comes from `rules`, what to match from `queries`.
"""
