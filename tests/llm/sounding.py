"""A client of an engine of sound in this process, for tests of both kinds."""

from tests.waiting import eventually


class SoundClient:
    """Events that an engine delivers, by the number of a request, and the order of their ends."""

    def __init__(self, engine):
        self.engine = engine
        self.events, self.ended, self.order = [], [], []

    def send(self, request):
        number = len(self.events)
        self.events.append([])

        def take(events, is_last):
            self.events[number] += events if isinstance(events, list) else [events]
            self.order.append(number)
            if is_last:
                self.ended.append(number)

        return self.engine.accept(request, take)

    def wait(self, count):
        def collected():
            self.engine.collect()
            return len(self.ended) >= count

        eventually(collected)
