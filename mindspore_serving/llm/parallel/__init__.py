"""A language model over ranks: processes that each hold a part of it and compute steps together."""
