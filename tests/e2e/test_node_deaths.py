"""Workers of other machines that die, hang or cannot load."""

import signal

from mindspore_serving import server
from tests.e2e.fragile import ask_wait, go, logged
from tests.e2e.harness import config, eventually, memory, write_servable
from tests.e2e.machines import all_end, answered, kill, serve, who


def test_a_worker_of_another_machine_that_is_killed_is_replaced(start_cluster, pool):
    made = start_cluster(local_slots=0)
    machine = made.join("one", "--slots", "2")
    serve(made, num_parallel_workers=2)
    first, victim = ask_wait(made.calls, pool)
    kill(victim)
    eventually(lambda: len(set(logged("wait"))) == 2)  # it runs again, elsewhere
    go()
    assert answered(first) != victim
    eventually(lambda: len(made.pids()) == 2)
    assert victim not in machine.workers()


def test_a_worker_that_stands_still_is_found_by_its_heartbeats(start_cluster):
    made = start_cluster(local_slots=0)
    machine = made.join("one", "--slots", "2")
    serve(made, heartbeat_timeout=1)
    (old,) = machine.workers()
    kill(old, signal.SIGSTOP)
    eventually(lambda: made.pids() not in ([], [old]))
    assert who(made) != old
    all_end([old])


def test_a_stage_that_takes_too_long_is_ended(start_cluster):
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "2")
    serve(made, stage_timeout=1)
    error = made.calls.client("toy", "wait").infer({"x": 1})["error"]
    assert "stage 1 ran for over 1 s (stage_timeout)" in error
    assert who(made) in eventually(made.pids)


def test_a_request_that_kills_workers_costs_no_other(start_cluster, pool):
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "4")
    serve(made, num_parallel_workers=2)
    deadly = pool.submit(made.calls.client("toy", "die").infer, {"x": 3})
    share = made.calls.client("toy", "share").infer
    others = [pool.submit(share, [{"x": 1}] * 20) for _ in range(5)]
    assert "died" in deadly.result()["error"]
    assert all("error" not in one.result() for one in others)
    assert len(logged("die")) == 2  # once more, by itself


def test_a_worker_that_cannot_load_on_a_node_starts_on_another(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one", "--slots", "1")
    serve(made)
    empty = made.directory / "empty"
    empty.mkdir()
    made.join("two", "--servables", str(empty))
    made.join("three")
    kill(one.pid)
    eventually(lambda: made.ready() == {"three": 1})


def test_autoscaled_workers_are_added_on_other_machines(start_cluster, pool):
    made = start_cluster(local_slots=1)
    made.join("one")
    serve(made, num_parallel_workers=0, max_workers=2, requests_per_worker=1)
    requests = [pool.submit(made.calls.client("toy", "wait").infer, {"x": 1}) for _ in range(2)]
    eventually(lambda: made.ready() == {"": 1, "one": 1})
    go()
    assert all("error" not in one.result() for one in requests)


def test_a_large_answer_is_not_collected_on_its_way(start_cluster):
    made = start_cluster(local_slots=0)
    one = made.join("one")
    write_servable(
        made.directory,
        "toy",
        "def grow(x):\n    return np.zeros(int(x), np.uint8)\n"
        "@register.register_method(output_names=['y'])\n"
        "def zeros(x):\n    return register.add_stage(grow, x, outputs_count=1)\n",
    )
    server.start_servables(config(made.directory, "toy"))
    client = made.calls.client("toy", "zeros")
    client.infer({"x": 1})
    before = memory(one.pid)
    (result,) = client.infer({"x": 90_000_000})
    assert result["y"].nbytes == 90_000_000
    assert memory(one.pid) - before < 30_000_000
