"""Language models in PyTorch."""
