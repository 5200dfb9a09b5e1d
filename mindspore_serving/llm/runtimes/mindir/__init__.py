"""Language models as MindIR files, and their export."""
