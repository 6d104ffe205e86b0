"""One file from which a node or guard starts without reading the log's beginning: the state at a checkpoint, who stated it, and the signed bytes that the
state refers to. What is taken was verified against the operator's statements; where the log goes on is left to the replica.
"""
