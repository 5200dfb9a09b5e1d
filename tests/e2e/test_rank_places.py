"""Where workers of a declared language model over ranks run: each rank takes a slot."""

import pytest

pytest.importorskip("torch")

from mindspore_serving import server
from tests.e2e.harness import config, write_servable
from tests.llm import chatty

pytestmark = [pytest.mark.torch, pytest.mark.e2e]
SOURCE = """
import os

RANKS = {ranks}
llm = register.declare_llm(
    "../chatty", runtime="openvino", dtype="f32", max_num_seqs=2, tensor_parallel=RANKS,
    kv_cache_memory=64 << 20, num_threads=2,
)
"""
WARNING = "a worker takes 1 of its machine's slots, but its language model has 2 ranks"


@pytest.mark.parametrize(
    ("ranks", "place", "is_warned"), [("2", "two", False), ("os.cpu_count() and 2", "one", True)]
)
def test_a_declared_model_takes_a_slot_for_each_rank_that_its_source_says(
    start_cluster, capfd, ranks, place, is_warned
):
    """The first machine has one slot.  What only a run would say is told once it is known."""
    made = start_cluster(local_slots=0)
    made.join("one", "--slots", "1")
    made.join("two", "--slots", "2")
    chatty.build(made.directory)
    write_servable(made.directory, "cut", SOURCE.format(ranks=ranks))
    server.start_servables(config(made.directory, "cut"))
    assert made.ready("cut") == {place: 1}
    shown = capfd.readouterr()
    assert (WARNING in shown.out + shown.err) == is_warned
