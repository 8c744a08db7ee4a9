"""Tiny random causal models of every family, with tokenizers of the real kinds.

Saved to a folder.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers as hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests import tiny
from tests.tiny import SENTENCES, SIZES, save_random

_TEXTS = [
    *SENTENCES,
    'This sentence : "It rains." means in one word:"Rain".',
    "After thinking step by step , this one",
]


def _finish(tokenizer: Tokenizer, *, front: str = "", after: str = "", **specials: str) -> Any:
    """Return a tokenizer of transformers, with the tokens that it adds at both ends."""
    added = [text for text in (front, after) if text]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{front} $A {after}".strip(),
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in added],
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


def byte_level(front: str = "", after: str = "", pad: str | None = None) -> Any:
    """GPT-2's kind: one special token at most, no [UNK], often no padding."""
    tokenizer = tiny.byte_level(_TEXTS, ["<|pad|>", "</s>", "<|endoftext|>"])
    named = {"bos_token": front or "<|endoftext|>", "eos_token": after or "<|endoftext|>"}
    return _finish(
        tokenizer, front=front, after=after, **named, **({"pad_token": pad} if pad else {})
    )


def llama_pieces() -> Any:
    """SentencePiece's BPE of Llama's older files: a normaliser puts the space in front.

    No padding token.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    letters = sorted({letter for text in _TEXTS for letter in text.replace(" ", "▁")})
    special = ["<unk>", "<s>", "</s>"]
    # pre-tokenised for the training alone: merges stay inside words, as in the real vocabularies
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=260, special_tokens=special, initial_alphabet=letters)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.pre_tokenizer = None
    return _finish(tokenizer, front="<s>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram(scheme: str = "first") -> Any:
    """SentencePiece's Unigram; the pre-tokenizer puts the space in front."""
    space = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer = tiny.unigram(_TEXTS, 150, ["<unk>", "<s>", "</s>"], space)
    tokenizer.pre_tokenizer = space  # alone, as published
    return _finish(tokenizer, front="<s>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


_GROUPED: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "max_position_embeddings": 700,
}
_GROUPED |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
_OPT = {
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 24,
}
_OPT |= {
    "max_position_embeddings": 700,
    "init_std": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_GEMMA: dict[str, Any] = {
    **_GROUPED,
    "head_dim": 8,
    "query_pre_attn_scalar": 5,
    "sliding_window": 6,
    "pad_token_id": 0,
}
_GEMMA2 = {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_GPT2 = {
    "n_embd": 16,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 700,
    "scale_attn_by_inverse_layer_idx": True,
}

#: Family -> (config class, its options, causal-LM class, tokenizer).
CAUSAL: dict[str, tuple[Any, dict[str, Any], Any, Callable[[], Any]]] = {
    "gpt2": (hf.GPT2Config, _GPT2, hf.GPT2LMHeadModel, byte_level),
    "opt": (hf.OPTConfig, _OPT, hf.OPTForCausalLM, lambda: byte_level(front="</s>", pad="<|pad|>")),
    "llama": (hf.LlamaConfig, _GROUPED, hf.LlamaForCausalLM, llama_pieces),
    "mistral": (
        hf.MistralConfig,
        {**_GROUPED, "sliding_window": 7},
        hf.MistralForCausalLM,
        unigram,
    ),
    "qwen2": (hf.Qwen2Config, _GROUPED, hf.Qwen2ForCausalLM, lambda: byte_level(pad="<|pad|>")),
    "qwen3": (
        hf.Qwen3Config,
        {
            **_GROUPED,
            "head_dim": 8,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        hf.Qwen3ForCausalLM,
        lambda: byte_level(after="</s>"),
    ),
    "gemma2": (hf.Gemma2Config, _GEMMA2, hf.Gemma2ForCausalLM, lambda: unigram("never")),
    "gemma3_text": (
        hf.Gemma3TextConfig,
        {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        hf.Gemma3ForCausalLM,
        lambda: unigram("always"),
    ),
}


def save_tiny_causal(family: str, folder: Path, *, model_class: Any = None, **options: Any) -> Path:
    """Save a random causal model of a family, some options of its configuration changed.

    Return the folder.
    """
    config_class, own, with_head, make_tokenizer = CAUSAL[family]
    return save_random(
        (config_class, {**own, **options}, with_head, make_tokenizer),
        folder,
        model_class=model_class,
    )
