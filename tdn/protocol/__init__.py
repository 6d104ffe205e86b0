"""What is said on the wire: names, times, descriptors, advertisements, requests, replies and log records.

Pure values and their checks against `schemas/`. Who may say it, and whether it is true, is left to `trust` and `rules`.
"""
