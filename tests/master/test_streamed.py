"""The streamed way: each request goes at once to the worker with the fewest open streams."""

import pytest
from msgspec.structs import replace

from mindspore_serving.errors import Overloaded
from mindspore_serving.ipc.messages import MethodReport
from tests.cards import CARD
from tests.master.served import Served, Worker, turn


def serve(*workers, **options):
    return Served(*workers, streams=True, **options)


def num_open(served, *workers):
    return [served.dispatcher._streams._num_open[worker] for worker in workers]


async def test_a_request_leaves_at_once_and_in_a_message_of_its_own():
    served = serve(worker := Worker(room=0))
    for number in range(1, 4):
        served.submit()
        assert worker.sizes == [1] * number


async def test_a_request_does_not_wait_for_a_batch():
    served = serve(worker := Worker(), max_batch_delay_ms=60000, preferred_batch_size=8)
    served.submit(3)
    assert worker.sizes == [1]
    assert len(worker.held[0].chunks) == 1  # the body as it came


@pytest.mark.parametrize(("num_requests", "num_workers", "each"), [(8, 2, 4), (9, 3, 3)])
async def test_requests_are_shared_evenly(num_requests, num_workers, each):
    workers = [Worker() for _ in range(num_workers)]
    served = serve(*workers)
    for _ in range(num_requests):
        served.submit()
    assert [len(worker.held) for worker in workers] == [each] * num_workers


async def test_the_worker_with_fewer_open_streams_gets_more():
    served = serve(first := Worker(), second := Worker())
    for _ in range(6):
        served.submit()
    served.answer(second)
    assert num_open(served, first, second) == [3, 0]
    for _ in range(3):
        served.submit()
    assert num_open(served, first, second) == [3, 3]


async def test_among_equal_workers_the_longest_waiting_worker_is_next():
    served = serve(first := Worker(), second := Worker())
    for worker in (first, second, first, second):
        served.submit()
        assert len(worker.held) == 1
        served.answer(worker)


LONG = "You answer in verse. " * 100


async def test_a_prompt_goes_where_its_beginning_was():
    served = serve(first := Worker(), second := Worker(), third := Worker())
    for worker, text in ((first, "a"), (second, "b"), (third, "c")):
        served.submit(prefix=[text, LONG])
        assert len(worker.held) == 1
    for count in range(2, 5):
        served.submit(prefix=[LONG[:300], LONG])
        served.submit(prefix=["b", LONG, "and more"])
        assert len(second.held) >= count
    assert len(first.held) + len(third.held) == 5


async def test_a_prompt_goes_elsewhere_if_its_worker_has_far_more_streams():
    served = serve(first := Worker(), second := Worker())
    for _ in range(7):
        served.submit(prefix=[LONG])
    assert [len(first.held), len(second.held)] == [5, 2]
    served.submit(prefix=[LONG])  # both have it by now: the one with fewer
    assert [len(first.held), len(second.held)] == [5, 3]


async def test_a_new_prompt_goes_to_the_worker_with_the_fewest_streams():
    served = serve(first := Worker(), second := Worker())
    served.submit(prefix=["a", LONG])
    served.submit(prefix=["b", LONG])
    served.submit(prefix=["short"])
    served.submit(prefix=["short"])
    assert [len(first.held), len(second.held)] == [2, 2]


async def test_a_stream_is_open_until_its_last_answer():
    served = serve(worker := Worker())
    served.submit(is_stream=True)
    served.answer(worker, is_last=False)
    assert num_open(served, worker) == [1]
    served.answer(worker)
    assert num_open(served, worker) == [0]


async def test_a_cancelled_stream_is_open_until_the_worker_has_answered():
    served = serve(worker := Worker())
    served.submit(is_stream=True).cancel()
    assert num_open(served, worker) == [1]
    served.answer(worker)
    assert num_open(served, worker) == [0]


async def test_all_streamed_methods_of_a_worker_count():
    served = serve(first := Worker(), second := Worker())
    other = MethodReport("n", ["x"], ["y"], 1, True, False, streams=True)
    for worker in (first, second):
        served.registry.add_worker(served.deployment, 1, [other], worker)
    served.submit()
    served.submit(method="n")  # whose first worker is the same
    assert num_open(served, first, second) == [1, 1]


async def test_batched_work_does_not_count():
    served = serve(first := Worker(), second := Worker())
    batched = MethodReport("n", ["x"], ["y"], 1, True, False)
    for worker in (first, second):
        served.registry.add_worker(served.deployment, 1, [batched], worker)
    for _ in range(3):
        served.submit(method="n")
    await turn()
    assert num_open(served, first, second) == [0, 0]
    served.submit()
    assert num_open(served, first, second) == [1, 0]


async def test_parts_without_a_worker_wait_for_the_next_worker():
    served = serve(first := Worker())
    request = served.submit()
    cancelled = served.submit()
    parts = list(request.parts)
    served.registry.remove_worker(served.service, first)
    for part in [*parts, *cancelled.parts]:
        served.method.put_back(part)
    cancelled.cancel()
    await turn()
    assert served.method.num_waiting == 2
    served.add(second := Worker())
    assert second.held == parts
    assert served.method.num_waiting == 0


def leave_after(served, seconds, clock, count=10):
    """`count` clients ask, and leave so much later without an output."""
    requests = [served.submit() for _ in range(count)]
    clock[0] += seconds
    for request in requests:
        request.cancel()


@pytest.mark.parametrize(("seconds", "is_refused"), [(3.0, True), (0.5, False)])
async def test_clients_that_leave_after_a_wait_limit_admission_and_quick_do_not(
    seconds, is_refused
):
    served = serve(worker := Worker())
    clock = [1000.0]
    served.dispatcher._now = lambda: clock[0]
    for _ in range(10):
        served.submit()
    for _ in range(40):  # each takes 2 s among ten, as each is replaced
        clock[0] += 0.2
        served.answer(worker, worker.held[0])
        served.submit()
    served.answer(worker)
    leave_after(served, seconds, clock)
    for _ in range(30):
        served.submit()
    await turn()
    refused = [reply for reply in served.replies[60:] if reply is not None]
    assert bool(refused) == is_refused
    assert len(refused) < 30
    assert all(isinstance(reply.failure, Overloaded) for reply in refused)


def with_card(*workers, **changes):
    """Workers of a language model that is asked to generate."""
    served = serve(others=["@generate"])
    for worker in workers:
        served.add(worker, card=replace(CARD, **changes))
    return served


def generate(served):
    return served.submit(method="@generate")


async def test_requests_beyond_the_capacity_of_an_engine_are_refused_unsent():
    served = with_card(worker := Worker(), max_num_seqs=2, max_num_waiting=3)
    for _ in range(6):
        generate(served)
    await turn()
    assert len(worker.held) == 5
    text = "3 requests wait already, at most 3 may; try again"
    assert [str(reply.failure) for reply in served.replies if reply] == [text]
    assert isinstance(served.failure(5), Overloaded)


async def test_the_room_of_engines_is_that_of_all_workers():
    served = with_card(first := Worker(), second := Worker(), max_num_seqs=2, max_num_waiting=1)
    for _ in range(7):
        generate(served)
    assert [len(first.held), len(second.held)] == [3, 3]


async def test_an_engine_without_a_limit_refuses_nothing_for_its_queue():
    served = with_card(worker := Worker(), max_num_seqs=2, max_num_waiting=None)
    for _ in range(50):
        generate(served)
    assert len(worker.held) == 50


async def test_a_refusal_is_told_beforehand_while_there_is_no_room():
    served = with_card(worker := Worker(), max_num_seqs=1, max_num_waiting=1)
    dispatcher, asked = served.dispatcher, ("s", 0, "@generate", None)
    generate(served)
    generate(served)
    assert not dispatcher.is_refusing
    generate(served)
    assert dispatcher.is_refusing
    assert "1 requests wait already" in str(dispatcher.refusal(*asked))
    served.answer(worker, worker.held[0])
    assert dispatcher.refusal(*asked) is None
    assert not dispatcher.is_refusing


async def test_refusal_leaves_unknown_servables_to_submit():
    assert serve(Worker()).dispatcher.refusal("other", 0, "m", None) is None
