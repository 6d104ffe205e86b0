"""What the processes that search for a node import, once, before the first of them is forked.

Apart from `searching`, which the node itself uses: the node never compiles a query, and does without the memory of five parsers.
"""

from tdn.node.searching import searcher
from tdn.queries.compile import warm_up

__all__ = ["searcher"]

warm_up(xquery=False)
