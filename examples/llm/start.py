"""Start the server that a configuration file of llm-serving asks for; stays up until stopped."""

import argparse
from pathlib import Path

from mindspore_serving import server
from mindspore_serving.errors import ServingError
from mindspore_serving.server.llm_config import read_llm_config

DEFAULT = Path(__file__).resolve().parent / "config" / "serving_config.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default=str(DEFAULT), help="X.yaml or serving_config.py")
    try:
        config = read_llm_config(parser.parse_args().config)
        print(f"{config.name}: {config.directory} with runtime {config.runtime}", flush=True)
        if config.unused:
            print(f"without effect here: {', '.join(config.unused)}", flush=True)
        server.start_servables(config.to_start_config())
        server.start_restful_server(config.address, llm_serving_form=config.form)
    except ServingError as error:
        server.stop()
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
