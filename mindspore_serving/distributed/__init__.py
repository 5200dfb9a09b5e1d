"""Gangs: ranks of one model in several processes, which start, fail and restart together."""
