"""Child processes: starting, inheritance, lifetime, exit, supervision and messages.

Does not know the messages that a role adds to the common ones, or what a role computes.
"""
