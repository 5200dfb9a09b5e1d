"""The table of sequences: order, workers, limits, ends; no process runs."""

import pytest

from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.errors import InvalidInputs, Overloaded, SequenceLost
from mindspore_serving.master.request import PendingPart, PendingRequest
from mindspore_serving.master.sequences import SequenceLimits, SequenceTable

LINK, OTHER = object(), object()


def table(**options):
    limits = {"max_sequences": 3, "idle_seconds": 10.0, **options}
    return SequenceTable("toy", SequenceLimits(**limits))


class Sent:
    """Parts of a table, their errors, and steps by short words: "a+" starts, "a-" ends."""

    def __init__(self, sequences):
        self.table, self.errors = sequences, []

    def enter(self, word, now=0.0):
        step = SequenceStep(word[0], "+" in word, "-" in word)
        request = PendingRequest(
            "m", lambda reply: self.errors.append(str(reply.failure)), lambda *_: None, now
        )
        part = PendingPart(request, 0, "native", (), step=step)
        request.parts = [part]
        part.entry = self.table.enter(step, now)
        part.entry.waiting.append(part)
        return part

    def send(self, part, link=LINK):
        assert self.table.next_part(part.entry) is part
        return self.table.message(part.entry, part, link)

    def answer(self, part, now=0.0, *, has_failed=False):
        self.table.answered(part.entry, part, now, has_failed=has_failed)


@pytest.fixture
def sent():
    return Sent(table())


def test_a_part_waits_for_the_answer_to_the_part_before(sent):
    first, second = sent.enter("a+"), sent.enter("a")
    assert (sent.send(first).is_start, sent.table.next_part(first.entry)) == (True, None)
    sent.answer(first)
    assert sent.send(second).number == first.entry.number


def test_requests_after_an_end_need_a_start(sent):
    end = sent.enter("a+-")
    with pytest.raises(InvalidInputs, match="sequence 'a' is not known; begin one with"):
        sent.enter("a")
    again = sent.enter("a+")  # before the answer to the end
    sent.send(end)
    sent.answer(end)
    assert sent.send(again).is_start
    sent.answer(again)
    assert len(sent.table) == 1


def test_the_requests_behind_a_start_that_failed_fail_up_to_the_next_start(sent):
    parts = [sent.enter(word) for word in ("a+", "a", "a-", "a+")]
    sent.send(parts[0])
    sent.answer(parts[0], has_failed=True)
    assert len(sent.errors) == 2
    assert all("has not begun: its start failed" in text for text in sent.errors)
    assert sent.send(parts[3]).is_start


def test_a_failed_request_in_the_middle_does_not_end_a_sequence(sent):
    for word in ("a+", "a", "a"):
        part = sent.enter(word)
        sent.send(part)
        sent.answer(part, has_failed=word == "a")
    assert len(sent.table) == 1


def test_a_cancelled_start_begins_nothing_and_its_state_is_dropped(sent):
    first = sent.enter("a+")
    sent.send(first)
    again, later = sent.enter("a+"), sent.enter("a")
    again.request.cancel()
    sent.answer(first)
    assert sent.table.next_part(first.entry) is None
    assert "a request of it was cancelled" in sent.errors[0]
    assert later.request.is_done
    assert (len(sent.table), sent.table.take_dropped()) == (0, {LINK: [first.entry.number]})
    assert sent.table.take_dropped() == {}


def test_the_number_of_sequences_is_limited(sent):
    for word in ("a+", "b+", "c+"):
        sent.enter(word)
    with pytest.raises(Overloaded, match="there are 3 sequences, which is the limit"):
        sent.enter("d+")
    sent.enter("b+")


def test_idle_sequences_end_but_not_those_with_requests(sent):
    for word in ("a+", "b+"):
        part = sent.enter(word, now=0.0)
        sent.send(part)
    sent.answer(part, now=5.0)  # b
    assert sent.table.expire(14.0) == []
    assert [entry.key[1] for entry in sent.table.expire(15.0)] == ["b"]
    assert sent.table.take_dropped() == {LINK: [2]}
    with pytest.raises(InvalidInputs, match="'b' has ended: it was idle for over 10 s"):
        sent.enter("b")
    assert sent.table.num_evicted == {"idle": 1, "lost": 0}


def test_sequences_of_a_lost_worker_end(sent):
    first, second = sent.enter("a+"), sent.enter("a")
    sent.send(first)
    other = sent.enter("b+")
    sent.send(other, OTHER)
    sent.table.lose(LINK, "it died")
    assert second.request.is_done
    assert "was lost: it died" in sent.errors[0]
    with pytest.raises(SequenceLost, match="was lost"):
        sent.enter("a")
    assert (len(sent.table), sent.table.num_evicted["lost"]) == (1, 1)


def test_kept_sequences_continue_on_another_worker_with_their_state():
    sent = Sent(table(is_kept=True))
    first = sent.enter("a+")
    assert sent.send(first).is_kept
    first.new_state = b"state"
    sent.answer(first)
    second = sent.enter("a")
    assert sent.send(second).state is None  # that worker has it
    (entry,) = sent.table.lose(LINK, "it died")
    sent.table.put_back(entry, second)
    assert sent.send(second, OTHER).state == b"state"
    sent.answer(second, has_failed=True)
    assert sent.send(sent.enter("a"), OTHER).state is None


def test_owners_do_not_share_ids():
    sequences = table()
    sequences.enter(SequenceStep("a", is_start=True, owner="x"), 0.0)
    with pytest.raises(InvalidInputs, match="is not known"):
        sequences.enter(SequenceStep("a", owner="y"), 0.0)
