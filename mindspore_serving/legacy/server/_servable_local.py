"""Old path of `ServableStartConfig` and `merge_config`, kept for scripts of the original."""

from mindspore_serving.server.config import ServableStartConfig, merge_config

__all__ = ["ServableStartConfig", "merge_config"]
