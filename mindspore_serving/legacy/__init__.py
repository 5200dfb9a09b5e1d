"""What lies at its old place below this directory, for `old_paths`."""
