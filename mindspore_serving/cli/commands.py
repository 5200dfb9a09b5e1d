"""Commands of the command line: one row for each, and their texts of `--help`."""

from dataclasses import dataclass
from typing import Any

from mindspore_serving import __version__
from mindspore_serving.cli import node_settings as node
from mindspore_serving.cli import tool_settings as tool
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.chat_settings import ChatSettings, RunBatchSettings, RunSettings
from mindspore_serving.cli.options import add_options
from mindspore_serving.cli.parser import CommandParser
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.cli.tune_settings import TuneSettings

_OVERVIEW = """\
Serve models of MindSpore, ONNX, PyTorch and Python over gRPC and REST, and language models over the
protocols of OpenAI, Anthropic, Ollama and TGI as well.

  mindspore-serving run model.gguf       serve a language model and chat with it
  mindspore-serving serve model.gguf     serve it until Ctrl-C
  mindspore-serving serve models/        serve every servable in models/
  mindspore-serving serve --config server.yaml      with settings per servable
  mindspore-serving run-batch in.jsonl out.jsonl model.gguf      answer a file of requests
  mindspore-serving chat                 talk with a language model of a server
  mindspore-serving launch claude        start a coding agent with it; also codex, opencode, aider
  mindspore-serving bench                measure how fast it answers
  mindspore-serving tune net.onnx        find the settings with which it is fastest
  mindspore-serving predict add predict '{"x": [1.0]}'      call a method
  mindspore-serving status               show which workers run, and where
  mindspore-serving pull Qwen/Qwen3-0.6B      download a model; also list, show, remove
  mindspore-serving doctor               show what works on this machine
  mindspore-serving ascend-check         check an Ascend device and its operators
  mindspore-serving worker --join 10.0.0.1:6200     run workers for a server elsewhere
  mindspore-serving quantize llama/ llama-int8/     round a language model to 8 bits
  mindspore-serving convert net.mindir net.xml      write MindIR for tools of OpenVINO

Commands for a running server take its URL first; without one it is http://127.0.0.1:1500.
A servable is a directory NAME/ with servable_config.py, and model files in NAME/1/.  Without
servable_config.py it is a directory with one model file, or the model file itself.
"""
_SERVE = """\
Serve models over REST and gRPC until Ctrl-C.

  mindspore-serving serve model.gguf                      a language model, with a page to chat
  mindspore-serving serve llama/ --quantization int8      a checkpoint of a language model
  mindspore-serving serve Qwen/Qwen3-0.6B                 a name: see docs models_by_name
  mindspore-serving serve net.mindir --name net           a model file; also .onnx, .pt2, ...
  mindspore-serving serve net.py:Net --weights net.ckpt   the code of a network and its weights
  mindspore-serving serve models/ --poll 10               every servable in models/, and new ones
  mindspore-serving serve --config server.yaml            with settings per servable

PATH is a model file: .mindir, .ms, .onnx, .pt2 or .pt (PyTorch), .xml (OpenVINO), .pb or .tflite
(TensorFlow), .pdmodel (Paddle), .skops (scikit-learn), .json or .ubj (XGBoost), .txt (LightGBM),
.cbm (CatBoost), .gguf, .mar (TorchServe); or a directory: with config.json and *.safetensors, with
one model file in it or in NAME/1/, with servable_config.py and model files in NAME/1/, with
config.pbtxt (Triton), model-settings.json (MLServer), MLmodel (MLflow), predict_*.yaml
(MindFormers) or Modelfile (Ollama), or with any number of these directories.  A name is ORG/NAME,
hf://ORG/NAME@REVISION or ORG/NAME:Q8_0.
The newest version of each is served; what cannot be served is named, and left out.
"""
_RUN = """\
Serve a language model and chat with it in one command.  The server takes a free port of 127.0.0.1,
and ends with the conversation.  With --prompt, or text on the standard input, it prints one answer:

  mindspore-serving run model.gguf
  mindspore-serving run unsloth/Qwen3-0.6B-GGUF:Q8_0
  mindspore-serving run checkpoint/ --quantization int8 --max-model-len 8192
  mindspore-serving run model.gguf --prompt "Why is the sky blue?" --temperature 0

It takes the options of `serve` for models, and those of `chat`.  In the conversation /help shows
the commands, Ctrl-C stops an answer, and exit ends it.
"""
_RUN_BATCH = """\
Answer a file of requests in the form of OpenAI's batches, without a server: no port opens.

  mindspore-serving run-batch in.jsonl out.jsonl model.gguf
  mindspore-serving run-batch in.jsonl out.jsonl Qwen/Qwen3-0.6B --concurrency 32

Results are in the order of the requests, errors too.  If it is interrupted, the same command goes
on with the requests that have no result, which it keeps in OUT.jsonl.state until the end.
"""
_CONFIG = """\
Print the configuration that `serve` would have with the same arguments, as a configuration file.
"""
_PREDICT = """\
Call a method once and print the reply as JSON.

  mindspore-serving predict add predict '{"x": [1.0]}'                        REST, on port 1500
  mindspore-serving predict http://10.0.0.1:1500 add predict '{"x": [1.0]}'   REST
  mindspore-serving predict grpc://10.0.0.1:5500 add predict '{"x": [1.0]}'   gRPC

INPUTS is a JSON object, or an array of objects, one per instance; "-" reads it from standard input.
Numbers are converted to the type of the model's input; bytes and tensors are written
{"b64": ..., "type": "int64", "shape": [2]}.  A URL without a scheme, as 10.0.0.1:5500, is of gRPC.
"""
_QUANTIZE = """\
Write a Hugging Face checkpoint with matrices rounded to 8 or 4 bits, for the OpenVINO runtime, or
to float16, which processors without bfloat16 read faster.  TARGET is again a checkpoint; it appears
when it is complete.
"""
_CONVERT = """\
Write a MindIR or Lite file as OpenVINO IR: the graph as OUT.xml, the weights in float32 as OUT.bin.
This needs OpenVINO (pip install 'mindspore-serving[lite]'), not MindSpore.  It cannot write ONNX.
"""
_CHAT = """\
Talk with a language model of a running server.  With --prompt, or text on the standard input, one
answer is printed:

  mindspore-serving chat
  mindspore-serving chat http://10.0.0.1:1500
  mindspore-serving chat --prompt "Why is the sky blue?" --temperature 0
  cat letter.txt | mindspore-serving chat --system "Summarize."

In a conversation you can edit and recall lines.  Three double quotes begin and end a message of
several lines, /help shows the commands, Ctrl-C stops an answer, and exit or Ctrl-D leaves.
"""
_LAUNCH = """\
Start a coding agent with a model of a running server.  What it sets is printed:

  mindspore-serving launch claude
  mindspore-serving launch codex -- exec "Explain this repository"
  mindspore-serving launch opencode --url http://10.0.0.1:1500 --model llama
  mindspore-serving launch aider --dry-run

The agent has to be installed.  What stands behind -- are its own arguments.
"""
_BENCH = """\
Send requests to a running server from many clients.  Show the time to the first token, the time
between tokens, the time of an answer, and tokens and requests per second.

  mindspore-serving bench                                     1, 4, 16 and 32 clients
  mindspore-serving bench http://10.0.0.1:1500 --rate 1,2,4   at random times
  mindspore-serving bench --input-tokens 1024 --shared-prefix 512
  mindspore-serving bench --profile sweep --scenario chat --chart out.html
  mindspore-serving bench --compare http://127.0.0.1:8000     each prompt to both servers
  mindspore-serving bench model.gguf --engines ours,genai,llama.cpp
  mindspore-serving bench http://127.0.0.1:1500/model/add:predict --body add.json

Prompts are random words, or come from a file (--prompts).  Their length is measured by the server's
count of tokens.  With --rate, latencies count from when a request was due, even if it was late.
Profiles and scenarios have guidellm's names: `mindspore-serving docs cli`.
"""
_TUNE = """\
Find the settings of a servable with which it is fastest, or keeps a goal, by measuring them.

  mindspore-serving tune net.onnx --output server.yaml
  mindspore-serving tune models/resnet50 --goal "p99<50ms" --load requests.jsonl
  mindspore-serving tune model.gguf --goal "first_p90<0.5s" --concurrency 8 --time 900
  mindspore-serving tune net.mindir --calibrate DATA.npz      int8 as well

Each candidate is served on a free port of 127.0.0.1 and measured in turn with the defaults; those
that seem best are measured again.  The result is the frontier of latency and rate as a table and a
chart, and a configuration for `serve --config`, with how sure it is.  The status is 1 if the goal
is impossible.  Options of `serve` are kept as they are set here.  Ctrl-C ends the servers and
prints what was measured so far.
"""
_WORKER = """\
Join a server and run workers for it on this machine until Ctrl-C or SIGTERM:

  openssl rand -hex 32 > token && chmod 600 token      the same file on both machines
  mindspore-serving serve models/ --worker-address 10.0.0.1:6200 --token-file token \\
      --tls-cert server.pem --tls-key server-key.pem               on 10.0.0.1
  mindspore-serving worker --join 10.0.0.1:6200 --token-file token --tls-ca ca.pem

This machine needs the servables and the same version of this package.  If the server ends, its
workers here end too, and this machine joins again when the server is back.  After SIGTERM the
workers finish their requests, and the server starts them elsewhere.
"""
_PULL = """\
Download a model by name, and print its path.  What is there already is not downloaded again, and a
download that was interrupted is continued.

  mindspore-serving pull Qwen/Qwen3-0.6B                   from Hugging Face
  mindspore-serving pull hf://Qwen/Qwen3-0.6B@main
  mindspore-serving pull hf://Qwen/Qwen3-0.6B-GGUF:Q8_0    a quantisation of several

`serve` and `run` take the same names, and download what is missing.
"""
_REMOVE = """\
Remove a downloaded model, in all revisions unless one is named, and say how much was freed:

  mindspore-serving remove Qwen/Qwen3-0.6B
  mindspore-serving remove hf://Qwen/Qwen3-0.6B@main --yes
"""
_SHOW = """\
Show what a model is, its licence and size, and what this server would do with it: which runtime
computes it, the memory that it needs, or why it is refused.

  mindspore-serving show model.gguf
  mindspore-serving show checkpoint/ --runtime torch
  mindspore-serving show net.onnx --json
"""
_ASCEND_CHECK = """\
Check an Ascend device before you serve on it: driver, firmware, CANN and devices, then each
operator of language models against numpy, in other processes: one that crashes or hangs is a row.
Then a small model is compared with numpy, and tokens per second are measured.

  mindspore-serving ascend-check                        on the device
  mindspore-serving ascend-check --json report.json     write the report as JSON, too
  mindspore-serving ascend-check --device cpu           the operators that replace the device's

The status is 1 if no device can be used or an operator differs.  ASCEND_RT_VISIBLE_DEVICES chooses
the device.  Nothing here was verified on hardware so far: please send us your report.
"""
_LOG_LEVEL = """\
Show or set the log level of a running server and its workers: debug, info, warning or error.

  mindspore-serving log-level debug

SIGUSR1 to the server's process also raises verbosity by one level, SIGUSR2 lowers it.
"""
_FUNCTIONS = {  # command -> module of `cli` and function, of modules with several
    **{name: ("models", name) for name in ("load", "unload", "models")},
    "load-lora": ("models", "load_lora"),
    "unload-lora": ("models", "unload_lora"),
    "pull": ("downloads", "pull"),
    "list": ("downloads", "list_downloads"),
    "remove": ("downloads", "remove"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """Subcommand: its name, a line and a text about it, and the type of its settings."""

    name: str
    short: str
    long: str
    settings: type[Any]

    @property
    def target(self) -> tuple[str, str]:
        """Module of `cli` and function that run it."""
        return _FUNCTIONS.get(self.name, (self.name.replace("-", "_"), "run"))


COMMANDS = (
    Command("serve", "serve models over REST and gRPC", _SERVE, ServeSettings),
    Command("run", "serve a language model and chat with it, in one", _RUN, RunSettings),
    Command(
        "run-batch", "answer a file of requests without a server", _RUN_BATCH, RunBatchSettings
    ),
    Command("config", "print the configuration of `serve`", _CONFIG, tool.ConfigSettings),
    Command("predict", "call a method of a running server once", _PREDICT, node.PredictSettings),
    Command("chat", "talk with a language model of a running server", _CHAT, ChatSettings),
    Command(
        "launch", "start a coding agent with a model of a server", _LAUNCH, tool.LaunchSettings
    ),
    Command("bench", "measure how fast a running server answers", _BENCH, BenchSettings),
    Command("tune", "find the fastest settings of a servable by measuring", _TUNE, TuneSettings),
    Command("pull", "download a model by name", _PULL, tool.PullSettings),
    Command("list", "show the downloaded models", "", tool.ListSettings),
    Command("remove", "remove a downloaded model", _REMOVE, tool.RemoveSettings),
    Command("show", "show what a model is, and the memory that it needs", _SHOW, tool.ShowSettings),
    Command("quantize", "round a language model's weights", _QUANTIZE, tool.QuantizeSettings),
    Command(
        "convert", "write a MindIR or Lite file as OpenVINO IR", _CONVERT, tool.ConvertSettings
    ),
    Command(
        "worker", "run workers on this machine for a server elsewhere", _WORKER, node.WorkerSettings
    ),
    Command("status", "show which workers run, and where", "", node.StatusSettings),
    Command("models", "show the models that a server has or can load", "", node.ModelsSettings),
    Command("load", "load a servable on a server with --allow-loading", "", node.LoadSettings),
    Command(
        "unload", "unload a servable on a server with --allow-loading", "", node.UnloadSettings
    ),
    Command(
        "load-lora",
        "load a LoRA adapter on a server with --allow-lora-loading",
        "",
        node.LoadLoraSettings,
    ),
    Command(
        "unload-lora",
        "unload a LoRA adapter on a server with --allow-lora-loading",
        "",
        node.UnloadLoraSettings,
    ),
    Command(
        "log-level", "show or set the log level of a server", _LOG_LEVEL, node.LogLevelSettings
    ),
    Command(
        "doctor", "show which backends, devices and ports can be used", "", tool.DoctorSettings
    ),
    Command(
        "ascend-check",
        "check an Ascend installation, and its operators against numpy",
        _ASCEND_CHECK,
        tool.AscendCheckSettings,
    ),
    Command("docs", "print a page of the documentation", "", tool.DocsSettings),
)
BY_NAME = {command.name: command for command in COMMANDS}


def parser() -> CommandParser:
    """Return the parser of the command line, with one of each command."""
    root = CommandParser(prog="mindspore-serving", description=_OVERVIEW)
    root.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    choices = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        text = command.long or f"{command.short[0].upper()}{command.short[1:]}."
        subparser = choices.add_parser(command.name, help=command.short, description=text)
        add_options(subparser, command.settings)
        subparser.set_defaults(settings=command.settings, command=command.name)
    return root


def parsers(root: CommandParser) -> dict[str, CommandParser]:
    """Return the parser of each command below `root`, by its name."""
    assert root._subparsers is not None
    choices: dict[str, CommandParser] = root._subparsers._group_actions[0].choices  # type: ignore[assignment]
    return choices
