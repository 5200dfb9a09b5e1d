"""Sound: files to samples, and samples to features.  Knows no request and no model."""
