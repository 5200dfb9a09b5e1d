"""Jobs on untrusted data in forked processes, which have limits of time and memory.

Does not know requests or models.
"""
