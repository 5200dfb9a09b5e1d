"""What is said of commands and options that do not exist, or that are those of other servers."""

import pytest

from mindspore_serving.cli import commands, main, other_names
from mindspore_serving.cli.options import flags
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.llm.config import OPTIONS


def told(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("server", "there is no command 'server': write 'mindspore-serving serve'"),
        ("serv", "there is no command 'serv'; did you mean 'serve'?"),
        ("generate", "write 'mindspore-serving run MODEL'"),
        ("ls", "write 'mindspore-serving list'"),
        ("rm", "write 'mindspore-serving remove NAME'"),
        ("download", "write 'mindspore-serving pull NAME'"),
        ("ps", "write 'mindspore-serving status'"),
        ("start", "write 'mindspore-serving serve'"),
        ("launch_server", "write 'mindspore-serving serve'"),
        ("benchmark", "write 'mindspore-serving bench'"),
        ("fly", "Commands are serve, "),
        (
            "model.gguf",
            "'model.gguf' is a path or a name: write 'mindspore-serving serve model.gguf'",
        ),
        ("tests", "'tests' is a path or a name: write 'mindspore-serving serve tests'"),
    ],
)
def test_a_word_that_is_no_command_gets_a_proposal(word: str, text: str, capsys) -> None:
    assert text in told(word, capsys)


def test_each_proposed_command_exists() -> None:
    for command in other_names._VERBS:
        assert command.startswith("--") or command.split()[0] in commands.BY_NAME
    assert not other_names._BY_VERB.keys() & commands.BY_NAME.keys()
    assert not other_names._ADVICE.keys() & other_names._BY_VERB.keys()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--tensor-parallel-size 2",
            "--tensor-parallel-size is a name of vLLM; here write --llm-option tensor_parallel=2",
        ),
        ("--tensor_parallel_size=4", "write --llm-option tensor_parallel=4"),
        ("-tp 2", "-tp is a name of vLLM; here write --llm-option tensor_parallel=2"),
        ("--gpu-memory-utilization 0.9", "--llm-option kv_cache_memory=2e9"),
        (
            "--grpc-library grpcio",
            "is a name of MindSpore Serving 3.0.0rc1; here leave it out",
        ),
        (
            "-m a.gguf",
            "-m is a name of llama.cpp; here give the model as an argument: serve a.gguf",
        ),
        ("--model-id a/b", "give the model as an argument: serve a/b"),
        ("-c 4096", "-c is a name of llama.cpp; here write --max-model-len 4096"),
        ("--num_ctx 4096", "--num_ctx is a name of Ollama; here write --max-model-len 4096"),
        ("-ngl 99", "here leave it out: a model is computed on one device"),
        ("-hf a/b:Q8_0", "give the model as an argument: serve a/b:Q8_0"),
        ("--hf-file a.gguf", "write it behind the model's name: ORG/NAME:a.gguf"),
        ("--revision v1", "write it behind the model's name: ORG/NAME@v1"),
        ("-np 4", "write --llm-option max_num_seqs=4"),
        (
            "--device cuda",
            "--device is a name of vLLM; here write --device-type CPU, GPU or Ascend",
        ),
        ("--context-length 4096", "a name of SGLang; here write --max-model-len 4096"),
        (
            "--llm-option ctx_size=9",
            "ctx_size is a name of llama.cpp; here write --max-model-len 9",
        ),
        ("--llm-option=gpu_memory_utilization=0.9", "here set the bytes of the cache"),
        ("--temp 0.7", "write --llm-option default_temperature=0.7"),
        ("-t 4", "write --llm-option num_threads=4"),
        ("--model-repository /models", "name of Triton; here give the model as an argument"),
        ("--model-control-mode=poll", "here write --poll SECONDS for poll"),
        ("--strict-readiness=false", "/v2/health/ready answer 200"),
        ("--metrics-port 8002", "GET /metrics of the HTTP port"),
        ("--served-model-name a", "write --name a"),
        ("--max-total-tokens 4096", "--max-total-tokens is a name of TGI; here write --max-model"),
        ("--max-concurrent-requests 9", "write --max-requests 9"),
        ("--num-shard 2", "write --llm-option tensor_parallel=2"),
        ("--enable-lora", "--adapter NAME=DIR serves an adapter"),
        ("--lora-modules sql=dir", "write --adapter sql=dir"),
        ("--rest_api_port=8501", "write --http-port 8501"),
    ],
)
def test_an_option_of_another_server_is_answered_with_ours(words: str, text: str, capsys) -> None:
    for command in ("serve", "config"):
        error = told(f"{command} words {words}", capsys)
        assert text.replace("serve a", f"{command} a") in error
        assert f"See 'mindspore-serving {command} --help'." in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--num-prompts 9", "--num-prompts is a name of vLLM's bench; here write --requests 9"),
        ("--max-concurrency=4", "here write --concurrency 4"),
        ("--request-rate 2", "a name of vLLM's bench and aiperf; here write --rate 2"),
        ("--base-url http://a:1", "here give the URL as the first argument: bench http://a:1"),
        ("--target http://a:1", "--target is a name of guidellm; here give the URL as the first"),
        ("--rate-type sweep", "here write --profile sweep"),
        ("--dataset-path a.json", '--prompts FILE, with lines {"prompt": ...'),
    ],
)
def test_an_option_of_another_benchmark_is_answered_with_ours(
    words: str, text: str, capsys
) -> None:
    assert text in told(f"bench {words}", capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("status --port 1600", "give the URL as the first argument, as http://127.0.0.1:1600"),
        ("models --host 10.0.0.1", "give the URL as the first argument, as http://10.0.0.1:1500"),
        ("load --url http://a:1 x", "here give the URL as the first argument: load http://a:1"),
        ("chat -p hello", "-p is a name of llama.cpp; here write --prompt hello"),
        ("chat --max_new_tokens 9", "here write --max-tokens 9"),
        ("run m --temp 0.5", "here write --temperature 0.5"),
        ("run m --ctx-size 4096", "here write --max-model-len 4096"),
    ],
)
def test_an_option_of_another_client_is_answered_with_ours(words: str, text: str, capsys) -> None:
    assert text in told(words, capsys)


@pytest.mark.parametrize(
    ("command", "table"),
    [("bench", other_names._BENCH_OPTIONS), ("chat", other_names._CHAT_OPTIONS)],
)
def test_answers_of_a_client_have_options_that_exist(command: str, table) -> None:
    own = set(flags(commands.BY_NAME[command].settings))
    for names in table.values():
        assert not own & names.keys()
        for text in names.values():
            words = text.replace(",", " ").replace(":", " ").split()
            assert {word for word in words if word.startswith("--")} <= own, text


def test_options_of_the_engine_are_no_names_of_other_servers(tmp_path, capsys) -> None:
    for name in ("device=cpu", "top_k=5", "embeddings=true", "quantization=int8"):
        assert main(["serve", str(tmp_path / "nowhere"), "--llm-option", name]) == 1
        assert "There is no file or directory" in capsys.readouterr().err


def test_each_command_in_the_tables_exists() -> None:
    assert other_names._TABLES.keys() <= commands.BY_NAME.keys()


def test_each_option_of_a_copied_command_line_is_answered(capsys) -> None:
    lines = told("serve -m a.gguf -c 4096 -ngl 99 --host 0.0.0.0 --port 80", capsys).splitlines()
    assert [line.split(" is a name")[0].split()[-1] for line in lines[:-1]] == [
        *("-m", "-c", "-ngl")
    ]


def test_options_that_servers_have_in_common_are_not_in_the_table() -> None:
    own = set(flags(ServeSettings))
    for names in other_names._OPTIONS.values():
        assert not own & names.keys()


def test_options_in_the_answers_to_other_names_exist() -> None:
    own = {*flags(ServeSettings), "--engine-option", "--llm-option"}
    for names in other_names._OPTIONS.values():
        for text in names.values():
            words = text.replace(",", " ").replace(")", " ").replace(":", " ").split()
            assert {word for word in words if word.startswith("--")} <= own, text
            given = [one for word, one in zip(words, words[1:], strict=False) if "llm-opt" in word]
            assert {one.partition("=")[0] for one in given} <= OPTIONS.keys(), text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--kv-cache-memory 2e9", "did you mean '--llm-option kv_cache_memory=2e9'?"),
        ("--kv-cache-mem=2e9", "did you mean '--llm-option kv_cache_memory=2e9'?"),
        ("--dtype f16", "did you mean '--llm-option dtype=f16'?"),
        ("--max-num-seqs 8", "did you mean '--llm-option max_num_seqs=8'?"),
        ("--enable-prefix-caching", "did you mean '--llm-option enable_prefix_caching=true'?"),
        ("--no-enable-prefix-caching", "did you mean '--llm-option enable_prefix_caching=false'?"),
        ("--head-timeout 5", "did you mean '--limit head_timeout=5'?"),
        ("--htp-port 5", "did you mean '--http-port'?"),
    ],
)
def test_engine_options_and_limits_are_proposed_as_they_are_written(words, text, capsys) -> None:
    error = told(f"serve words {words}", capsys)
    assert text in error
    assert "See 'mindspore-serving serve --help'." in error
