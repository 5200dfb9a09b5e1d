"""Hugging Face models that do not generate: labels, entities, vectors and fill-mask.

It knows no stage, queue or protocol: a task maps the inputs of instances to the outputs, or the
error, of each.
"""
