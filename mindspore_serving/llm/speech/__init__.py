"""Speech to text: sound to log-mel features, an encoder and decoder, and texts with times."""
