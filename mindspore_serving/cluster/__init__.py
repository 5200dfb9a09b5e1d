"""Machines and launchers: where workers run and how they are started there."""
