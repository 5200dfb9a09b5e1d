"""Child processes: how one is started, what it inherits, how its life depends on ours, and how it
ends.  Knows neither messages nor what a child computes."""
