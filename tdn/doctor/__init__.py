"""`tdn doctor`: looks at a home and at what runs of it, says what is wrong and what to do; one function per check.

Changes nothing, needs nothing to run, and never shows a secret. Leaves mending to the operator.
"""
