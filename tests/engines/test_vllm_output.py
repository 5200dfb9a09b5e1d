"""What the output of a vLLM server says.  The lines have the form of vLLM's, torch-npu's, CANN's
and MindSpore's; no device printed them here."""

import pytest

from mindspore_serving.llm.upstream.vllm_output import STATES, EngineOutput

PEER = "(Worker_TP0 pid=11) ERROR 11-28 12:00:09 [multiproc_executor.py:1] "
CAUSE = "(Worker_TP1 pid=12) ERROR 11-28 12:00:08 [multiproc_executor.py:1] "
MAIN = "(EngineCore_DP0 pid=10) ERROR 11-28 12:00:10 [core.py:708] "


def read(*lines: str) -> EngineOutput:
    output = EngineOutput()
    output.feed("\n".join(lines).encode())
    output.feed(b"")
    return output


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("INFO [core.py:69] Initializing a V1 LLM engine (v0.23.0) with", "configuring the engine"),
        ("INFO world_size=2 rank=1 backend=hccl", "connecting its ranks"),
        ("INFO [model_runner_v1.py:9] Starting to load model /m", "loading weights"),
        ("Loading safetensors checkpoint shards:  25% Completed | 1/4 [", "loading weights, 25 %"),
        ("INFO Loading model weights took 15.27 GB", "measuring memory"),
        ("INFO GPU KV cache size: 391,296 tokens", "warming up"),
        ("INFO Dynamo: Compiling a graph for dynamic shape", "compiling graphs"),
        ("Capturing ACL graphs (decode, FULL):  40%|####", "capturing graphs, 40 %"),
        (
            "INFO init engine (profile, warmup model) took 61 s",
            "starting its HTTP server",
        ),
    ],
)
def test_a_line_begins_a_state(line: str, text: str) -> None:
    assert read(line).text == text


def test_states_with_a_percentage_grow_to_the_next() -> None:
    half = read("Loading safetensors checkpoint shards:  50% Completed")
    assert half.share == pytest.approx((0.15 + 0.6) / 2)
    assert all(state.share <= state.until <= 1 for state in STATES)


def test_a_progress_bar_is_read_while_its_line_is_not_complete() -> None:
    output = EngineOutput()
    output.feed(b"Capturing ACL graphs:   0%|\rCapturing ACL graphs:  50%|\rCapt")
    assert output.text == "capturing graphs, 50 %"


def test_the_process_with_the_first_error_failed_first() -> None:
    output = read(
        "(Worker_TP1 pid=12) INFO loading",
        f"{CAUSE}Traceback (most recent call last):",
        f"{CAUSE}RuntimeError: SetDevice failed",
        f"{PEER}RuntimeError: HCCL error code is 7",
        f"{MAIN}Exception: WorkerProc initialization failed",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    assert output.failed == "Worker_TP1"
    assert output.last_lines()[0] == "INFO loading"
    assert len(output.last_lines()) == 3
    assert output.reason() == "Worker_TP1 failed first: RuntimeError: SetDevice failed"


def test_lines_of_cann_and_mindspore_belong_to_ranks_by_process_id() -> None:
    output = read(
        "(Worker_TP0 pid=11) INFO ready",
        "(Worker_TP1 pid=12) INFO ready",
        "[ERROR] DEVICE(12,ffff8c0,python):2026-11-28-12:00:00 [ascend.cc:1] EL0004: no memory",
        "[ERROR] 2026-11-28-12:00:01 (PID:11, Device:0, RankID:0) ERR02200 DIST call hccl failed",
    )
    assert output.failed == "Worker_TP1"
    assert "EL0004" in output.last_lines()[-1]


def test_an_error_after_which_a_process_goes_on_is_none() -> None:
    output = read(
        "(Worker_TP0 pid=11) ERROR ImportError: no optional kernels",
        "(Worker_TP0 pid=11) INFO Starting to load model /m",
        f"{CAUSE}ValueError: 30 heads",
    )
    assert output.failed == "Worker_TP1"


def test_an_error_long_before_the_end_is_not_its_reason() -> None:
    output = EngineOutput()
    output.feed(b"(APIServer pid=9) ERROR ValueError: the prompt is too long\n")
    for _ in range(13):
        output.note_health()
    output.feed(f"{CAUSE}RuntimeError: it is gone\n".encode())
    assert output.failed == "Worker_TP1"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ImportError: libascendcl.so: cannot open shared object file", "CANN is not in the env"),
        ("ImportError: libatb.so: cannot open shared object file", "nnal/atb/set_env.sh"),
        (
            "ImportError: libdcmi.so: cannot open shared object file",
            "of the driver are missing",
        ),
        ("ImportError: /x/libtorch_npu.so: undefined symbol: _ZN3atb15Create", "do not belong tog"),
        (
            "RuntimeError: aclnnNonzeroV2 or aclnnNonzeroV2GetWorkspaceSize not in libopapi.so",
            "versions of CANN",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/dev/davinci0'", "group HwHiAiUser"),
        ("EL0005: The resources are busy.", "the device is in use"),
        ("EJ0001: Failed to initialize the HCCP process.", "the device is in use"),
        ("RuntimeError: SetDevice: error code is 107001", "there is no such device"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2 GiB", "lower --max-model-len"),
        ("ValueError: No available memory for the cache blocks.", "lower --max-model-len"),
        ("RuntimeError: error code is 207008", "name fewer"),
        ("EI0006: getting socket times out", "HCCL_SOCKET_IFNAME"),
        ("RuntimeError: Failed to infer device type", "cannot load the plugin"),
        ("error: unrecognized arguments: --no-such 1", "--no-such 1"),
    ],
)
def test_a_known_error_comes_with_advice(line: str, advice: str) -> None:
    reason = read(f"{CAUSE}{line}").reason()
    assert line in reason
    assert advice in reason


def test_a_server_without_an_error_has_its_last_line_as_reason() -> None:
    assert read("INFO one", "Killed").reason() == "Killed"
    assert read().reason() == "it printed nothing"


def test_lines_without_end_and_many_processes_take_limited_memory() -> None:
    output = EngineOutput()
    for _ in range(8):
        output.feed(b"x" * (1 << 17))
    output.feed(b"\n" + b"".join(b"(P%d pid=%d) y\n" % (n, n) for n in range(3000)))
    assert len(output._rest) <= 1 << 18
    assert len(output._processes) <= 1024
