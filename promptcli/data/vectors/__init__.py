"""Vector files, folders of their parts, and quantization."""
