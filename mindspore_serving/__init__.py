"""MindSpore Serving: one server for every model its users have.  This imports nothing else."""

__version__ = "3.0.0.dev0"
__path__.append(f"{__path__[0]}/legacy")  # has `agent`, an import path of llm-serving
