"""Whether it is true: certificates, signatures, sealing, freshness, admission, and the offline verdict on a signed statement.

Pure but for loading keys from a folder. Trusted roots, time and known certificates are passed in; nothing here logs or waits.
"""
