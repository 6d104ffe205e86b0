"""Measurements against the bare limit, taken side by side in one run, because machines are shared and noisy.

`make bench` prints one table; the ratios are what counts. Each module here measures one thing and says what its bare run does.
"""
