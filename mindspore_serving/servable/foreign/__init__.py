"""Model directories of other servers: one module for each format, which reads its description.

Nothing in such a directory is run, and no model is loaded.
"""
