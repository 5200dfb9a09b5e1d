"""The command `mindspore-serving`: serve models, call methods, look after servers and machines.

It parses arguments and selects the subcommand, whose module is imported when it runs, so that
`--help` and `--version` are quick. docs/cli.md has the exit statuses.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from mindspore_serving import __version__, extras, log
from mindspore_serving.cli import node_settings as node
from mindspore_serving.cli import tool_settings as tool
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.options import add_options, flags, parsed_values, to_settings
from mindspore_serving.cli.parser import CommandParser
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.errors import InvalidField, InvalidInputs, ServingError, did_you_mean
from mindspore_serving.process.entry import turn_off_telemetry

_OVERVIEW = """\
Serve models of MindSpore, ONNX, PyTorch and Python over gRPC and REST, and language models over the
protocols of OpenAI, Anthropic, Ollama and TGI as well.

  mindspore-serving serve models/        serve every servable in models/
  mindspore-serving serve --config server.yaml      with settings per servable
  mindspore-serving predict 127.0.0.1:5500 add predict '{"x": [1.0]}'
  mindspore-serving chat http://127.0.0.1:1500      talk with a language model
  mindspore-serving bench http://127.0.0.1:1500     measure how fast it answers
  mindspore-serving worker --join 10.0.0.1:6200     run workers for a server elsewhere
  mindspore-serving status               show which workers run, and where
  mindspore-serving doctor               show what works on this machine
  mindspore-serving quantize llama/ llama-int8/     round a language model to 8 bits
  mindspore-serving convert net.mindir net.xml      write MindIR for tools of OpenVINO

A servable is a directory NAME/ with servable_config.py, and model files in NAME/1/.  Without
servable_config.py it is a directory with one model file, or the model file itself.
"""
_SERVE = """\
Serve models over REST and gRPC until Ctrl-C.  PATH is

  NAME/           with servable_config.py, and model files in NAME/1/
  NAME/           with one model file, in it or in NAME/1/
  NAME/           with config.json and *.safetensors: a checkpoint of a language model
  a model file    .mindir, .onnx, .pt2 or .pt (PyTorch), .xml (OpenVINO), .pb or .tflite
                  (TensorFlow), .pdmodel (Paddle), .skops (scikit-learn), .json or .ubj
                  (XGBoost), .txt (LightGBM), .gguf (a language model)
  a directory     of any number of these

The newest version of each servable is served.  If a servable cannot be served, the reason is
printed and the others are served, unless --strict is given.  Settings per servable are in a file
(--config), or in a start-up script with ServableStartConfig.
"""
_CONFIG = """\
Print the configuration that `serve` would have with the same arguments, as a configuration file.
"""
_PREDICT = """\
Call a method once and print the reply as JSON.  WHERE is IP:PORT or unix:PATH for gRPC, or
http://IP:PORT (https://...) for REST.  INPUTS is a JSON object, or an array of objects, one per
instance; "-" reads it from standard input.  Numbers are converted to the type of the model's input;
bytes and tensors are written {"b64": ..., "type": "int64", "shape": [2]}.
"""
_QUANTIZE = """\
Write a Hugging Face checkpoint with matrices rounded to 8 or 4 bits, for the OpenVINO runtime, or
to float16, which processors without bfloat16 read faster.  TARGET is again a checkpoint; it appears
when it is complete.
"""
_CONVERT = """\
Write a MindIR file as OpenVINO IR: the graph as OUT.xml, the weights in float32 as OUT.bin.  This
needs OpenVINO (pip install 'mindspore-serving[lite]'), not MindSpore.  It cannot write ONNX.
"""
_CHAT = """\
Talk with a language model of a running server.  With --prompt, or text on the standard input, one
answer is printed:

  mindspore-serving chat http://127.0.0.1:1500
  mindspore-serving chat http://127.0.0.1:1500 --prompt "Why is the sky blue?" --temperature 0
  cat letter.txt | mindspore-serving chat http://127.0.0.1:1500 --system "Summarize."

In a conversation you can edit and recall lines.  Three double quotes begin and end a message of
several lines, /help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves.
"""
_BENCH = """\
Send requests to a running server from many clients.  Show the time to the first token, the time
between tokens, the time of an answer, and tokens and requests per second.

  mindspore-serving bench http://127.0.0.1:1500                           1, 4, 16, 32 clients
  mindspore-serving bench http://127.0.0.1:1500 --rate 1,2,4              at random times
  mindspore-serving bench http://127.0.0.1:1500 --input-tokens 1024 --shared-prefix 512
  mindspore-serving bench http://127.0.0.1:1500 --profile sweep --scenario chat --chart out.html
  mindspore-serving bench http://127.0.0.1:1500 --compare http://127.0.0.1:8000
  mindspore-serving bench model.gguf --engines ours,genai,llama.cpp       each serves it in turn
  mindspore-serving bench http://127.0.0.1:1500/model/add:predict --body add.json

Prompts are random words, or come from a file (--prompts).  Their length is measured by the server's
count of tokens.  With --rate, latencies count from when a request was due, even if it was late.
Profiles and scenarios have guidellm's names: docs/cli.md.
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
_LOG_LEVEL = """\
Show or set the log level of a running server and its workers: debug, info, warning or error.

  mindspore-serving log-level debug

SIGUSR1 to the server's process also raises verbosity by one level, SIGUSR2 lowers it.
"""


# Errors of arguments or a configuration file.  Their subclasses are errors of servers' answers.
_WRONG = (InvalidInputs, InvalidField)
_MODELS = ("load", "unload", "models", "load-lora", "unload-lora")  # functions of one module


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's arguments); return the exit status."""
    turn_off_telemetry()  # for `doctor` and `convert`
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors have its messages
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.print_help(sys.stderr)
        return 2
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        wrong = next((word for word in unknown if word.startswith("--")), "").partition("=")[0]
        near = did_you_mean(wrong, flags(arguments.settings))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    is_empty = not arguments.paths if arguments.command == "serve" else False
    if is_empty and "config" not in arguments and "upstream" not in arguments:
        parser.error("the following arguments are required: PATH, --upstream or --config")
    try:
        settings = _settings(arguments)
        status = _run(arguments.command, settings)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output, as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ServingError as error:
        status = 2 if type(error) in _WRONG else 1
        return _fail(arguments.command, str(error), status)
    except ModuleNotFoundError as error:
        return _fail(arguments.command, extras.missing(error, arguments.command))
    except KeyboardInterrupt:
        return 130


def _fail(command: str, text: str, status: int = 1) -> int:
    """Print an error; for commands that log it is a line of the log, too."""
    tell = log.tell if command in ("serve", "worker") else partial(print, file=sys.stderr)
    tell(f"mindspore-serving: {text}")
    return status


def _settings(arguments: argparse.Namespace) -> object:
    """Return the settings of the subcommand.

    Raises ServingError for a wrong option or configuration file.
    """
    values = parsed_values(arguments.settings, arguments)
    if "config" in arguments:
        from mindspore_serving.cli import config_file

        values = config_file.read(arguments.config) | values
    return to_settings(arguments.settings, values)


def _run(command: str, settings: object) -> int:
    name = command.replace("-", "_")
    module, function = ("models", name) if command in _MODELS else (name, "run")
    status: int = getattr(import_module(f"{__name__}.{module}"), function)(settings)
    return status


def _parser() -> CommandParser:
    parser = CommandParser(prog="mindspore-serving", description=_OVERVIEW)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, short, long, kind in (
        ("serve", "serve models over REST and gRPC", _SERVE, ServeSettings),
        ("config", "print the configuration of `serve`", _CONFIG, tool.ConfigSettings),
        ("predict", "call a method of a running server once", _PREDICT, node.PredictSettings),
        ("chat", "talk with a language model of a running server", _CHAT, node.ChatSettings),
        ("bench", "measure how fast a running server answers", _BENCH, BenchSettings),
        ("quantize", "round a language model's weights", _QUANTIZE, tool.QuantizeSettings),
        ("convert", "write a MindIR file as OpenVINO IR", _CONVERT, tool.ConvertSettings),
        (
            "worker",
            "run workers on this machine for a server elsewhere",
            _WORKER,
            node.WorkerSettings,
        ),
        ("status", "show which workers run, and where", "", node.StatusSettings),
        ("models", "show the models that a server has or can load", "", node.ModelsSettings),
        ("load", "load a servable on a server with --allow-loading", "", node.LoadSettings),
        ("unload", "unload a servable on such a server", "", node.UnloadSettings),
        (
            "load-lora",
            "load a LoRA adapter on a server with --allow-lora-loading",
            "",
            node.LoadLoraSettings,
        ),
        ("unload-lora", "unload a LoRA adapter on such a server", "", node.UnloadLoraSettings),
        ("log-level", "show or set the log level of a server", _LOG_LEVEL, node.LogLevelSettings),
        ("doctor", "show which backends, devices and ports can be used", "", tool.DoctorSettings),
    ):
        command = commands.add_parser(
            name,
            help=short,
            description=long or f"{short.capitalize()}.",
        )
        add_options(command, kind)
        command.set_defaults(settings=kind, command=name)
    return parser
