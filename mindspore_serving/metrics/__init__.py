"""The numbers that a server shows: how they are counted, what they mean, and Prometheus' text."""
