"""Work on what clients sent, in processes that can be killed: forked ready, limited in time and
memory.  Knows neither requests nor models.
"""
