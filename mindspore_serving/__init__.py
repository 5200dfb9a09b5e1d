"""MindSpore Serving, a model server.  Importing this package imports nothing else."""

__version__ = "3.0.0rc1"
__path__.append(f"{__path__[0]}/legacy")  # contains `agent`, an import path of llm-serving
