"""Files of other programs as backbones: llama.cpp's GGUF, and word vectors as text."""
