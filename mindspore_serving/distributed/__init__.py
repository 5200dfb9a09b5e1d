"""One model over several processes: a gang of ranks that start, fail and restart together."""
