"""Language models in MindSpore."""
