"""What a process tells of itself: metrics, health, the fields of its log lines, traces.

Labels are kinds, outcomes and roles, never names of topics, entities or queries. It leaves to others what is worth telling, and knows errors and plain
numbers alone.
"""
