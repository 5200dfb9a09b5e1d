"""Front ends in processes of their own, in front of one master that decides and dispatches."""
