"""Old modules of `mindspore_serving.server`."""
