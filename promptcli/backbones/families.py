"""The differences between the families of backbones, as a table: heads, positions, layout."""

from dataclasses import dataclass

from promptcli.extensions import Table

GELU = "gelu"  #: a step of the MLM transform that is a function and not a module of the model


@dataclass(frozen=True)
class BertPlan:
    """The facts about a family with BERT's layout that ``backbones/bert.py`` needs to compute it
    without transformers.
    """

    model: str  #: transformers' class without a head, for configurations that others read
    prefix: str  #: of its tensors' names in a model with a head
    pad: int = 0  #: id of the padding token, if the configuration has none
    projected: bool = False  #: embeddings have another width than the layers, and a projection
    token_types: bool = True  #: embeddings of token types are added
    relative_positions: bool = False  #: scores have a bias by distance, maps have MPNet's names


@dataclass(frozen=True)
class Family:
    """One ``model_type`` of transformers."""

    #: Modules of the masked-LM model that make the MLM transform T, in order; none in causal
    #: families, where T is the identity.
    transform: tuple[str, ...]
    decoder: str  #: its output projection, bias included
    pads_before_positions: bool = False  #: positions start after the padding id (RoBERTa: at 2)
    hook: bool = True  #: the attention hook works with transformers' model
    plan: BertPlan | None = None  #: None unless it has BERT's layout
    pooler: bool = False  #: checkpoints may have a pooler
    causal: bool = False  #: a token sees only earlier ones; the sentence is read at the last token
    layers: str = ""  #: module that holds the layers (causal families)
    #: output projection of the attention, {} for the layer's number; "" if it may not be read
    projection: str = ""
    #: transformers' model takes keys and values from outside, as peft's prefix tuning gives them
    takes_keys: bool = True

    @property
    def opens(self) -> bool:
        """Whether methods reach its attention: Ditto and deep prefixes work."""
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
