"""Advertisements as a real network would have them, made from a seed: for benchmarks, demonstrations and tests of scale.

It promises that the same seed gives the same topics on every machine, and that queries with few matches exist at any size. Loading,
storing and timing are left to others.
"""
