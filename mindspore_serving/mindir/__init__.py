"""MindIR files: reading them, and building an OpenVINO model of one.  MindSpore is not needed.

Knows no server; the import of OpenVINO is that of `convert` and `operators` alone.
"""
