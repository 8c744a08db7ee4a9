"""ONNX and OpenVINO: an encoder as one graph, exported, or run in place of torch."""
