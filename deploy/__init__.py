"""Running the network for real: images, compose, systemd, Kubernetes, and what it is made of (`supply`).

Nothing in `tdn`, `entity_client` or `spark` uses this folder, and the wheel does not hold it.
"""
