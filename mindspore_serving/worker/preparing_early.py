"""Preparation of a worker for a language model, before the master tells it to load the model.

A failure here is not told: loading meets it again, and tells of it.
"""

from contextlib import suppress
from pathlib import Path
from threading import Thread


def prepare(path: Path) -> None:
    """Import what a language model of a GGUF file needs, compile, and read its tokenizer."""
    with suppress(Exception):
        from mindspore_serving.llm import loader
        from mindspore_serving.llm.runtimes.combined import opening

        Thread(target=_compile, args=(path,), name="compile early", daemon=True).start()
        from mindspore_serving.llm.serving import async_engine
        from mindspore_serving.worker import default_method, language

        assert opening
        assert async_engine
        assert default_method
        assert language
        loader.read_tokenizer_early(path)


def _compile(path: Path) -> None:
    with suppress(Exception):
        from mindspore_serving.llm.config import EngineConfig
        from mindspore_serving.llm.runtimes.default import reason_against
        from mindspore_serving.llm.runtimes.native.opening import compile_early

        if not reason_against(path, EngineConfig()):
            compile_early(path)
