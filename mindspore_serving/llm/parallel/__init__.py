"""Parallelism: a language model over ranks, processes that each compute a part of every step."""
