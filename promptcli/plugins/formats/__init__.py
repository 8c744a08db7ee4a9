"""Files of other programs as backbones: GGUF of llama.cpp, and word vectors as text."""
