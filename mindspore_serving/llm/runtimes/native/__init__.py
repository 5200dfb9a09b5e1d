"""Runtime of steps of few rows: one compiled interpreter of a plan, weights as in the file."""
