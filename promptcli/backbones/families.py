"""What differs between the families of backbones, as a table: heads, positions, floor plan. No code but look-ups."""

from dataclasses import dataclass

#: A step of the MLM transform that is a function and not a module of the model.
GELU = "gelu"


@dataclass(frozen=True)
class Family:
    """One ``model_type`` of transformers."""

    #: Modules of the masked-LM model that make the MLM transform T, in order; none in causal families, where T is the
    #: identity.
    transform: tuple[str, ...]
    decoder: str  #: its output projection, bias included
    pads_before_positions: bool = False  #: positions start after the padding id (RoBERTa: at 2)
    seam: bool = True  #: the attention seam reaches it: Ditto and deep prefixes work
    #: Layers have BERT's parts (attention.self/output, intermediate, output), so the last one can be computed at one
    #: position.
    bert_plan: bool = False
    pooler: bool = False  #: ``AutoModel`` takes ``add_pooling_layer``
    #: A token sees those before it only: the sentence is read at its last token, and nothing is added after it.
    causal: bool = False
    layers: str = ""  #: module that holds the layers (causal families)


_LM_HEAD = ("lm_head.dense", GELU, "lm_head.layer_norm")
_ROBERTA = Family(_LM_HEAD, "lm_head.decoder", pads_before_positions=True, bert_plan=True, pooler=True)
_LLAMA = Family((), "lm_head", causal=True, layers="layers")

FAMILIES: dict[str, Family] = {
    "bert": Family(("cls.predictions.transform",), "cls.predictions.decoder", bert_plan=True, pooler=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": Family(("generator_predictions",), "generator_lm_head", bert_plan=True),
    "modernbert": Family(("head",), "decoder"),
    "albert": Family(
        ("predictions.dense", "predictions.activation", "predictions.LayerNorm"), "predictions.decoder", pooler=True
    ),
    "distilbert": Family(("vocab_transform", "activation", "vocab_layer_norm"), "vocab_projector"),
    "mpnet": Family(_LM_HEAD, "lm_head.decoder", pads_before_positions=True, seam=False, pooler=True),
    "deberta": Family(("cls.predictions.transform",), "cls.predictions.decoder", seam=False),
    "deberta-v2": Family(("cls.predictions.transform",), "cls.predictions.decoder", seam=False),
    "gpt2": Family((), "lm_head", causal=True, layers="h"),
    "opt": Family((), "lm_head", causal=True, layers="decoder.layers"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _LLAMA,
    "gemma3_text": _LLAMA,
}
