"""Downloads for clients in processes of their own, which can be killed and share no memory.

Knows names and sources (`hub`), and no servable.
"""
