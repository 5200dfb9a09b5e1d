"""Models by name: references, the sources that have them, and the files to download.

It knows no model format beyond the names of files, and never runs code of a repository.
"""
