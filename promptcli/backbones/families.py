"""The families of backbones, as a table of their differences: heads, positions, layout."""

from dataclasses import dataclass

from promptcli.extensions import Table

GELU = "gelu"  #: the step of the MLM transform that is a function


@dataclass(frozen=True)
class BertPlan:
    """The differences of a family with BERT's layout, for ``backbones/bert.py``."""

    model: str  #: transformers' class without a head, written into exported configurations
    prefix: str  #: of its tensors' names in a model with a head
    pad: int = 0  #: id of the padding token, if the configuration has none
    projected: bool = False  #: whether the embeddings may have another width than the layers
    token_types: bool = True  #: whether embeddings of token types are added
    #: whether scores have a bias by distance; the attention then has MPNet's names
    relative_positions: bool = False


@dataclass(frozen=True)
class Family:
    """One ``model_type`` of transformers."""

    #: Modules of the masked-LM model that make up the MLM transform T, in order; empty in causal
    #: families, where T is the identity.
    transform: tuple[str, ...]
    decoder: str  #: module of the output projection, bias included
    pads_before_positions: bool = False  #: whether positions start after the padding id
    hook: bool = True  #: whether the attention hook works with transformers' model
    plan: BertPlan | None = None  #: for families with BERT's layout
    pooler: bool = False  #: whether checkpoints may have a pooler
    causal: bool = False  #: whether a token sees only earlier tokens
    layers: str = ""  #: module of the layers, in causal families
    #: module of the attention's output projection, {} for the layer's number; "" if unknown
    projection: str = ""
    #: whether transformers' model accepts keys and values, which peft's prefix tuning gives
    takes_keys: bool = True

    @property
    def opens(self) -> bool:
        """Whether methods reach its attention, as Ditto and deep prefixes need."""
        return self.hook or self.plan is not None


_BERT_PROJECTION = "encoder.layer.{}.attention.output.dense"
_LLAMA_PROJECTION = "layers.{}.self_attn.o_proj"
_LLAMA = Family(
    (),
    "lm_head",
    causal=True,
    layers="layers",
    projection=_LLAMA_PROJECTION,
)
_DEBERTA = Family(
    ("cls.predictions.transform",), "cls.predictions.decoder", hook=False, takes_keys=False
)
_LM_HEAD = ("lm_head.dense", GELU, "lm_head.layer_norm")


def _roberta(model: str) -> Family:
    plan = BertPlan(model, "roberta", pad=1)
    return Family(
        _LM_HEAD,
        "lm_head.decoder",
        True,
        plan=plan,
        pooler=True,
        projection=_BERT_PROJECTION,
    )


FAMILIES: Table[Family] = Table(
    "families",
    {
        "bert": Family(
            ("cls.predictions.transform",),
            "cls.predictions.decoder",
            plan=BertPlan("BertModel", "bert"),
            pooler=True,
            projection=_BERT_PROJECTION,
        ),
        "roberta": _roberta("RobertaModel"),
        "xlm-roberta": _roberta("XLMRobertaModel"),
        "camembert": _roberta("CamembertModel"),
        "electra": Family(
            ("generator_predictions",),
            "generator_lm_head",
            plan=BertPlan("ElectraModel", "electra", projected=True),
            projection=_BERT_PROJECTION,
        ),
        "modernbert": Family(
            ("head",),
            "decoder",
            takes_keys=False,
            projection="layers.{}.attn.Wo",
        ),
        "albert": Family(
            ("predictions.dense", "predictions.activation", "predictions.LayerNorm"),
            "predictions.decoder",
            takes_keys=False,
            pooler=True,
        ),
        "distilbert": Family(
            ("vocab_transform", "activation", "vocab_layer_norm"),
            "vocab_projector",
            takes_keys=False,
            projection="transformer.layer.{}.attention.out_lin",
        ),
        "mpnet": Family(
            _LM_HEAD,
            "lm_head.decoder",
            pads_before_positions=True,
            hook=False,
            plan=BertPlan("MPNetModel", "mpnet", pad=1, token_types=False, relative_positions=True),
            takes_keys=False,
            pooler=True,
            projection="encoder.layer.{}.attention.attn.o",
        ),
        "deberta": _DEBERTA,
        "deberta-v2": _DEBERTA,
        "gpt2": Family(
            (),
            "lm_head",
            causal=True,
            layers="h",
            projection="h.{}.attn.c_proj",
        ),
        "opt": Family(
            (),
            "lm_head",
            causal=True,
            layers="decoder.layers",
            projection="decoder.layers.{}.self_attn.out_proj",
        ),
        "llama": _LLAMA,
        "mistral": _LLAMA,
        "qwen2": _LLAMA,
        "qwen3": _LLAMA,
        "gemma2": _LLAMA,
        "gemma3_text": _LLAMA,
        "gemma3_text-bidirectional": Family((), "lm_head", projection=_LLAMA_PROJECTION),
    },
)
