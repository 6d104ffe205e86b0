"""The topic discovery network: nodes that mint signed topics, the log they share, and the guard that RabbitMQ asks.

Applications use `entity_client`; this package is what stands behind it and what an operator runs (`tdn`).
"""

__version__ = "0.1.0"
