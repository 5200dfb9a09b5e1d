"""MindSpore Lite files (.ms): FlatBuffers of a graph, which becomes an OpenVINO model."""
