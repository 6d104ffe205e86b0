"""A private network on one machine: the processes that `tdn up` starts and `tdn down` stops.

Promises that nothing it started outlives `tdn down`. Leaves what a node, guard or broker does to those
themselves.
"""
