"""Tiny random backbones of every family, with real tokenizers trained on a few sentences.

Saved to a folder.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SENTENCES = [
    "A man is playing the guitar.",
    "The cat sat on the mat, and it did not move.",
    "Two children run across a green field",
    'She said "no" and closed the door.',
    "This sentence means nothing at all!",
    "It's raining; the streets of the town are empty",
    "Why does the river bend here?",
    "An old woman sells white flowers by the station.",
    "the the the dog barks",
    "Numbers like 42 and 1,000 are words too",
    "Unbelievably, the unhappy runners kept running.",
    "I",
]

_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA_SPECIALS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    AddedToken("<mask>", lstrip=True, special=True),
]


def wordpiece(items: list[str], *, lowercase: bool = True) -> Any:
    """Return BERT's tokenizer of a vocabulary."""
    vocabulary = {item: number for number, item in enumerate(dict.fromkeys([*_SPECIALS, *items]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad", "unk", "cls", "sep", "mask")
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{of}_token": f"[{of.upper()}]" for of in names}
    )


def _wordpiece() -> Any:
    """A vocabulary written out (the trainer's ties fall differently each time): letters, some
    words, some endings.
    """
    text = " ".join(SENTENCES).lower()
    letters = sorted(set(text) - {" "})
    words = sorted({word.strip(".,;!?\"'") for word in text.split()[::2]} - {"", *letters})
    return wordpiece(
        [*letters, *(f"##{letter}" for letter in letters), *words, "un", "##ing", "##ly", "##s"]
    )


def _roberta_like(tokenizer: Tokenizer) -> Any:
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
    )


def byte_level(texts: list[str], specials: list[Any]) -> Tokenizer:
    """Return a byte-level BPE trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def unigram(
    texts: list[str], size: int, specials: list[Any], *before: Any, normalizer: Any = None
) -> Tokenizer:
    """Return SentencePiece's Unigram trained on texts, which ``before`` splits first."""
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(before))
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="<unk>")
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level() -> Any:
    return _roberta_like(byte_level(SENTENCES, _ROBERTA_SPECIALS))


def _sentencepiece() -> Any:
    before = pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation()
    return _roberta_like(
        unigram(SENTENCES, 150, _ROBERTA_SPECIALS, *before, normalizer=normalizers.NFKC())
    )


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
_COMMON: dict[str, Any] = {**SIZES, "max_position_embeddings": 66}
_ROBERTA: dict[str, Any] = {**_COMMON, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_MODERNBERT = {
    **_ROBERTA,
    "cls_token_id": 0,
    "sep_token_id": 2,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
}
_DISTILBERT = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 66,
}
_DEBERTA = {
    **_COMMON,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
}

#: Family -> (config class, its options, masked-LM class, tokenizer).
FAMILIES: dict[str, tuple[Any, dict[str, Any], Any, Callable[[], Any]]] = {
    "bert": (hf.BertConfig, _COMMON, hf.BertForMaskedLM, _wordpiece),
    "roberta": (hf.RobertaConfig, _ROBERTA, hf.RobertaForMaskedLM, _byte_level),
    "electra": (
        hf.ElectraConfig,
        {**_COMMON, "embedding_size": 8},
        hf.ElectraForMaskedLM,
        _wordpiece,
    ),
    "xlm-roberta": (hf.XLMRobertaConfig, _ROBERTA, hf.XLMRobertaForMaskedLM, _sentencepiece),
    "camembert": (hf.CamembertConfig, _ROBERTA, hf.CamembertForMaskedLM, _sentencepiece),
    "modernbert": (hf.ModernBertConfig, _MODERNBERT, hf.ModernBertForMaskedLM, _byte_level),
    "albert": (hf.AlbertConfig, {**_COMMON, "embedding_size": 8}, hf.AlbertForMaskedLM, _wordpiece),
    "distilbert": (hf.DistilBertConfig, _DISTILBERT, hf.DistilBertForMaskedLM, _wordpiece),
    "mpnet": (hf.MPNetConfig, _ROBERTA, hf.MPNetForMaskedLM, _byte_level),
    "deberta-v2": (hf.DebertaV2Config, _DEBERTA, hf.DebertaV2ForMaskedLM, _wordpiece),
}


def save_tiny(family: str, folder: Path, *, model_class: Any = None) -> Path:
    """Save a random model of a family, weights large enough that layers matter.

    Return the folder.
    """
    return save_random(FAMILIES[family], folder, model_class=model_class)


def save_random(
    row: tuple[Any, dict[str, Any], Any, Callable[[], Any]], folder: Path, *, model_class: Any
) -> Path:
    """Save a random model of a row of ``FAMILIES``."""
    config_class, options, with_head, make_tokenizer = row
    tokenizer = make_tokenizer()
    config = config_class(vocab_size=len(tokenizer), **{"initializer_range": 0.3, **options})
    random_model(lambda: (model_class or with_head)(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_model(make: Callable[[], Any]) -> Any:
    """Return a model of always the same random weights."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():  # biases start at zero, where a forgotten one would not be seen
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
