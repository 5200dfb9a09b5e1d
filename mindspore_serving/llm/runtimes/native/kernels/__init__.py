"""Products with matrices in the blocks of their files, compiled for this processor."""
