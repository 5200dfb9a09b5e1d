"""Front ends in processes of their own, before one master that decides, counts and dispatches."""
