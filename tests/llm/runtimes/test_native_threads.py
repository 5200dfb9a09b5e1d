"""Threads of the native runtime compute every chunk once, and a record after the one before it."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, instruction_set
from mindspore_serving.llm.runtimes.native.kernels.emitter import I32, I64
from mindspore_serving.llm.runtimes.native.threads import (
    KernelPlan,
    KernelThreads,
    physical_cores,
)

CHUNKS = 37


@pytest.fixture(scope="module")
def using(tmp_path_factory):
    return Compiler(instruction_set(), tmp_path_factory.mktemp("kernels"))


def copy_body(e, arguments, chunk):
    """Set target[chunk] to 1 + source[CHUNKS - 1 - chunk], of any other chunk of the record before.

    Writes also the thread's identity.
    """
    source, target = (e.load(arguments, I64, 8 * at) for at in range(2))
    other = e.b.mul(e.c(8), e.b.sub(e.c(CHUNKS - 1), chunk))
    value = e.b.add(e.load(source, I64, other), e.c(1))
    address = e.b.add(target, e.b.mul(chunk, e.c(8)))
    pointer = e.b.inttoptr(address, I64.as_pointer())
    e.b.atomic_rmw("add", pointer, value, "seq_cst")


def counting(using, num_records, named=("copy", copy_body)):
    """A plan in which number n of a record is how many records were complete, if all is right."""
    arrays = np.zeros((num_records + 1, CHUNKS), np.int64)
    kernel = using.address(*named)
    records = []
    for index in range(num_records):
        arguments = np.array([arrays[index].ctypes.data, arrays[index + 1].ctypes.data], np.int64)
        records.append((kernel, CHUNKS, arguments))
    return KernelPlan(records), arrays


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_records_are_computed_in_order_and_chunks_once(num_threads, using):
    team = KernelThreads(num_threads, using=using)
    for _ in range(20):
        plan, arrays = counting(using, 50)
        team.run(plan)
        np.testing.assert_array_equal(arrays, np.arange(51)[:, None].repeat(CHUNKS, 1))
    team.close()


def test_threads_on_a_single_core_finish(using):
    allowed, results = os.sched_getaffinity(0), []

    def run():
        os.sched_setaffinity(0, {min(allowed)})
        team = KernelThreads(2, using=using)
        plan, arrays = counting(using, 50)
        for _ in range(5):
            arrays[:] = 0
            team.run(plan)
            results.append((arrays == np.arange(51)[:, None]).all())
        team.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [True] * 5


def sleepy_body(e, arguments, chunk):
    """Do as `copy_body`, and sleep 2 ms before one of the chunks."""
    with e.b.if_then(e.b.icmp_signed("==", chunk, e.c(5))):
        e.call("usleep", I32, e.c(2000, I32))
    copy_body(e, arguments, chunk)


def test_records_stay_in_order_though_a_thread_sleeps_in_a_chunk(using):
    """As a thread does that other processes have displaced; results are those of one thread."""
    team = KernelThreads(3, using=using)
    for _ in range(5):
        plan, arrays = counting(using, 10, ("sleepy", sleepy_body))
        team.run(plan)
        np.testing.assert_array_equal(arrays, np.arange(11)[:, None].repeat(CHUNKS, 1))
    team.close()


@pytest.mark.slow
def test_threads_finish_beside_processes_that_keep_cores_busy(using):
    """All results are right on a core that three processes share, and on all cores."""
    allowed = sorted(os.sched_getaffinity(0))
    for cores in ({allowed[0]}, set(allowed)):
        program = f"import os; os.sched_setaffinity(0, {cores})\nwhile True: pass"
        neighbours = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
        try:
            os.sched_setaffinity(0, cores)
            team = KernelThreads(3, using=using)
            for _ in range(50):
                plan, arrays = counting(using, 50)
                team.run(plan)
                np.testing.assert_array_equal(arrays, np.arange(51)[:, None].repeat(CHUNKS, 1))
            team.close()
        finally:
            os.sched_setaffinity(0, allowed)
            for process in neighbours:
                process.kill()
                process.wait()


def test_closed_threads_end(using):
    before = threading.active_count()
    team = KernelThreads(3, using=using)
    assert threading.active_count() == before + 2
    team.close()
    assert threading.active_count() == before


def test_a_plan_of_nothing_ends(using):
    before = threading.active_count()
    team = KernelThreads(2, using=using)
    team.run(KernelPlan([]))
    team.close()
    assert threading.active_count() == before


def test_plans_that_would_not_end_are_refused():
    with pytest.raises(StartError, match="kernel 1 with 0 chunks, expected an address and 1 to"):
        KernelPlan([(1, 0, np.zeros(1, np.int64))])


def test_physical_cores_are_of_the_affinity_mask():
    assert set(physical_cores()) <= os.sched_getaffinity(0)
    assert physical_cores()
