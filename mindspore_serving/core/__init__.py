"""The nouns: what is served, what is asked for, what flows.  Plain data, no I/O."""
