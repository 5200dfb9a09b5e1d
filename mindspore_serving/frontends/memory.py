"""How much memory the bodies of all requests to a server take together.  Counts, holds nothing."""

NO_MEMORY = "The bodies of other requests take all memory that there is for them"


class BodyMemory:
    """`held` of at most `most` bytes are taken."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, num_bytes: int) -> bool:
        """Whether there was room for so many more."""
        if self.held + num_bytes > self.most:
            return False
        self.held += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        self.held -= num_bytes
