"""RabbitMQ through pika's asyncio adapter: connections, confirmed publishing, consuming, the topology, and the log as a stream.

Foreign errors become ours here, from one table. What messages mean is left to others.
"""
