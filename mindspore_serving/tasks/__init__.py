"""Hugging Face models that do not generate: labels, entities, vectors and fills.

Knows no stage, no queue and no protocol: a task takes the inputs of some instances and gives the
outputs, or the error, of each.
"""
