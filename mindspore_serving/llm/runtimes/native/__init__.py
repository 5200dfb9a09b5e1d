"""Runtime of steps with few rows on a CPU, which reads the blocks of files without packing."""
