"""Worker process: loads a servable and runs its stages."""

from mindspore_serving import old_paths

__path__.append(old_paths.directory("worker"))  # register and distributed of versions 1.1 to 1.4
__getattr__ = old_paths.forward("worker", ("start_servable", "start_servable_in_master", "stop"))
