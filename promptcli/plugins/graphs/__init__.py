"""ONNX and OpenVINO: an encoder as one graph, to export or to run instead of torch."""
