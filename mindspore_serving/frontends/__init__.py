"""The servers clients talk to: decode, submit, encode."""
