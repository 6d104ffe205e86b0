"""The broker's authorisation service: RabbitMQ asks it for every decision, and it answers from its own view of the log.

It fails closed. It also ends the open connections of keys that the log has superseded or revoked, because the broker asks only once.
"""
