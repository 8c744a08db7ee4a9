"""The shapes of the backbones that papers publish settings and figures for."""

from promptcli.backbones.pretrained import Shape

#: Published name -> its shape. A folder of this shape is a copy of it, or a model made like it.
PUBLISHED_SHAPES: dict[str, Shape] = {
    "bert-base-uncased": Shape("bert", 768, 12, 12, 30_522),
    "bert-large-uncased": Shape("bert", 1024, 24, 16, 30_522),
    "roberta-base": Shape("roberta", 768, 12, 12, 50_265),
    "roberta-large": Shape("roberta", 1024, 24, 16, 50_265),
    "facebook/opt-125m": Shape("opt", 768, 12, 12, 50_272),
    "facebook/opt-350m": Shape("opt", 1024, 24, 16, 50_272),
    "facebook/opt-1.3b": Shape("opt", 2048, 24, 32, 50_272),
    "facebook/opt-2.7b": Shape("opt", 2560, 32, 32, 50_272),
    "facebook/opt-6.7b": Shape("opt", 4096, 32, 32, 50_272),
    "facebook/opt-13b": Shape("opt", 5120, 40, 40, 50_272),
    "huggyllama/llama-7b": Shape("llama", 4096, 32, 32, 32_000),
    "huggyllama/llama-13b": Shape("llama", 5120, 40, 40, 32_000),
    "huggyllama/llama-30b": Shape("llama", 6656, 60, 52, 32_000),
    "meta-llama/Llama-2-7b-hf": Shape("llama", 4096, 32, 32, 32_000),
    "meta-llama/Meta-Llama-3-8B": Shape("llama", 4096, 32, 32, 128_256),
    "mistralai/Mistral-7B-v0.1": Shape("mistral", 4096, 32, 32, 32_000),
}
