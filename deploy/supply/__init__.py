"""What this project is made of: the lock read, audited, listed as a bill of materials, and cut to what one image needs.

Promises nothing about whether a package is good: it says which bytes are taken, under which licence, and who asked for them.
"""
