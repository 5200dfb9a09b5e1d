"""Old modules at their old paths below this directory, for `old_paths`."""
