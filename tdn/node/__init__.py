"""One topic discovery node: admit, decide, append, apply, answer.

It mints topics, puts changes into the log, and answers questions from its own view. It holds no lock and leads nobody; any node can
finish what another began.
"""
