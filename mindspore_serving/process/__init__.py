"""Child processes: how one is started, what it inherits, how its life depends on ours, how it ends,
and how it speaks.  Knows neither what a role says beside the common words, nor what it computes.
"""
