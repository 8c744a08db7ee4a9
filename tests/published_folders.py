"""Small random folders with the files and configurations of the models that people type first."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests import tiny
from tests.tiny import SENTENCES, SIZES, random_model

MODULES = "sentence_transformers.models."
_TEXTS = [
    *SENTENCES,
    "Instruct: given a question\nQuery: what is it",
    "query: passage: search_query: task: result |",
]
_BERT_NAMES = {
    f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
}
_ROBERTA_NAMES = {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "mask")}
_ROBERTA_NAMES |= {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}


def _added(text: str, **flags: Any) -> AddedToken:
    return AddedToken(text, special=True, **{"normalized": False, **flags})


def _around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    specials = [(name, tokenizer.token_to_id(name)) for name in single.split() if name != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)
    return tokenizer


def _wordpiece(specials: list[str], unk: str, single: str) -> Tokenizer:
    """BERT's and MPNet's: lower-casing WordPiece, with the padding and truncation that the
    published files carry.
    """
    letters = sorted(set(" ".join(_TEXTS).lower()) - {" ", "\n"})
    words = sorted(
        {word.strip(".,;!?\"'|:") for text in _TEXTS for word in text.lower().split()}
        - {"", *letters}
    )
    items = [*specials, *letters, *(f"##{letter}" for letter in letters), *words[::2]]
    vocabulary = {item: number for number, item in enumerate(dict.fromkeys(items))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([_added(name, lstrip=name == "<mask>") for name in specials])
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(pad_id=vocabulary[specials[0]], pad_token=specials[0], length=128)
    return _around(tokenizer, single)


def bert_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    about = {
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 512,
    }
    made = _wordpiece(list(_BERT_NAMES.values()), "[UNK]", "[CLS] $A [SEP]")
    return made, {**about, "tokenizer_class": "BertTokenizer", **_BERT_NAMES}


def mpnet_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    made = _wordpiece(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], "[UNK]", "<s> $A </s>")
    about = {"do_lower_case": True, "tokenizer_class": "MPNetTokenizer", "model_max_length": 512}
    return made, {**about, **_ROBERTA_NAMES, "unk_token": "[UNK]"}


def xlmr_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" {2,}", " ")])
    words = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")
    specials = ["<s>", "<pad>", "</s>", "<unk>", _added("<mask>", lstrip=True)]
    tokenizer = tiny.unigram(_TEXTS, 170, specials, *words, normalizer=normalizer)
    about = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512, **_ROBERTA_NAMES}
    return _around(tokenizer, "<s> $A </s>"), about


def modernbert_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    names = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    tokenizer = tiny.byte_level(_TEXTS, [_added(name, lstrip=name == "[MASK]") for name in names])
    tokenizer.normalizer = normalizers.NFC()
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **_BERT_NAMES}
    return _around(tokenizer, "[CLS] $A [SEP]"), about


def qwen_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = tiny.byte_level(
        _TEXTS, [_added(f"<|{name}|>") for name in ("endoftext", "im_start", "im_end")]
    )
    tokenizer.normalizer = normalizers.NFC()
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "padding_side": "left",
    }
    about |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}
    return _around(tokenizer, "$A <|endoftext|>"), about


def gemma_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    names = ("pad", "eos", "bos", "unk", "mask")
    specials = [_added(f"<{name}>") for name in names]
    letters = sorted({letter for text in _TEXTS for letter in text.replace(" ", "▁")})
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=letters)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "add_eos_token": True,
    }
    return _around(tokenizer, "<bos> $A <eos>"), {
        **about,
        **{f"{name}_token": f"<{name}>" for name in names},
    }


_BERT = {**SIZES, "max_position_embeddings": 512}
_XLMR = {
    **_BERT,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_CAUSAL = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
_GEMMA = {
    **_CAUSAL,
    "max_position_embeddings": 2048,
    "sliding_window": 9,
    "use_bidirectional_attention": True,
}
_GEMMA |= {"query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
_MODERNBERT = {
    **_BERT,
    "max_position_embeddings": 8192,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
}
_MODERNBERT |= {
    "pad_token_id": 3,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _pooling(mode: str, **about: Any) -> dict[str, Any]:
    modes = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    )
    return {
        "word_embedding_dimension": 16,
        **{f"pooling_mode_{one}": one == mode for one in modes},
        **about,
    }


def _dense(rows: int, columns: int, number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))
    identity = "torch.nn.modules.linear.Identity"
    config = {
        "in_features": columns,
        "out_features": rows,
        "bias": False,
        "activation_function": identity,
    }
    return "Dense", config, {"linear.weight": weight}


class Published(NamedTuple):
    """What a published folder says."""

    config: Any
    fields: dict[str, Any]
    tokenizer: Callable[[], tuple[Tokenizer, dict[str, Any]]]
    limit: int | None
    pooling: dict[str, Any] = _pooling("mean_tokens")
    after: Sequence[Any] = (("Normalize", {}, {}),)
    prompts: dict[str, str] | None = None
    lower: bool = False


_QUERY = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
_QWEN = {**_CAUSAL, "max_position_embeddings": 32768, "pad_token_id": 0}
_QWEN_PROMPTS = {"query": _QUERY, "document": ""}
_LAST, _MEAN = (_pooling(mode, include_prompt=True) for mode in ("lasttoken", "mean_tokens"))
_AFTER = (_dense(32, 16, 1), _dense(16, 32, 2), ("Normalize", {}, {}))
_E5 = {"query": "query: ", "passage": "passage: "}
_NOMIC = {"search_query": "search_query: ", "search_document": "search_document: "}
_GEMMA_PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
_GEMMA_PROMPTS |= {"STS": "task: sentence similarity | query: "}
MODELS = {
    "all-MiniLM-L6-v2": Published(hf.BertConfig, _BERT, bert_tokenizer, 256),
    "all-mpnet-base-v2": Published(hf.MPNetConfig, _XLMR, mpnet_tokenizer, 384),
    "bge-small-en-v1.5": Published(
        hf.BertConfig, _BERT, bert_tokenizer, 512, _pooling("cls_token"), lower=True
    ),
    "e5-base-v2": Published(hf.BertConfig, _BERT, bert_tokenizer, 512, prompts=_E5),
    "multilingual-e5-small": Published(  # a BERT with XLM-R's tokenizer
        hf.BertConfig,
        {**_BERT, "tokenizer_class": "XLMRobertaTokenizer"},
        xlmr_tokenizer,
        512,
        prompts=_E5,
    ),
    "paraphrase-multilingual-mpnet-base-v2": Published(
        hf.XLMRobertaConfig, _XLMR, xlmr_tokenizer, 128, after=()
    ),
    "gte-modernbert-base": Published(
        hf.ModernBertConfig,
        _MODERNBERT,
        modernbert_tokenizer,
        8192,
        _pooling("cls_token"),
        after=(),
    ),
    "modernbert-embed-base": Published(
        hf.ModernBertConfig, _MODERNBERT, modernbert_tokenizer, 8192, prompts=_NOMIC
    ),
    "Qwen3-Embedding-0.6B": Published(
        hf.Qwen3Config, _QWEN, qwen_tokenizer, None, _LAST, prompts=_QWEN_PROMPTS
    ),
    "embeddinggemma-300m": Published(
        hf.Gemma3TextConfig, _GEMMA, gemma_tokenizer, None, _MEAN, _AFTER, _GEMMA_PROMPTS
    ),
}


def write(folder: Path, file: str, content: Any) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def save_body(folder: Path, config_class: Any, fields: dict[str, Any], make_tokenizer: Any) -> None:
    """Write configuration, weights large enough that layers matter, and the tokenizer's files."""
    tokenizer, about = make_tokenizer()
    config = config_class(vocab_size=tokenizer.get_vocab_size(), initializer_range=0.3, **fields)
    random_model(lambda: hf.AutoModel.from_config(config)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", about)


def write_modules(folder: Path, pooling: dict[str, Any], after: Any, inside: str = "") -> None:
    """Write modules.json and what it lists except the Transformer, which stands in the folder
    ``inside``.

    Each module in ``after`` is its kind, or the complete name of a class, with its configuration
    and tensors.
    """
    modules = [("Transformer", inside), ("Pooling", "1_Pooling")]
    write(folder, "1_Pooling/config.json", pooling)
    for number, (kind, config, tensors) in enumerate(after, 2):
        modules.append((kind, f"{number}_{kind}"))
        write(folder, f"{number}_{kind}/config.json", config)
        if tensors:
            save_file(tensors, folder / f"{number}_{kind}" / "model.safetensors")
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": kind if "." in kind else f"{MODULES}{kind}",
        }
        for number, (kind, path) in enumerate(modules)
    ]
    write(folder, "modules.json", listed)


def save_published(name: str, folder: Path) -> Path:
    """Write the folder of a published model, small and random; return it."""
    model = MODELS[name]
    save_body(folder, model.config, model.fields, model.tokenizer)
    write(
        folder,
        "sentence_bert_config.json",
        {"max_seq_length": model.limit, "do_lower_case": model.lower},
    )
    write_modules(folder, model.pooling, model.after)
    about = {
        "prompts": model.prompts or {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write(folder, "config_sentence_transformers.json", {"__version__": {}, **about})
    return folder


def write_folder(
    tmp_path,
    body,
    *,
    pooling=None,
    after=(),
    limit=32,
    inside="",
    prompts=None,
    default=None,
    lower=False,
):
    """Write a folder as sentence-transformers 2 to 6 do.

    ``after``: (kind, configuration, tensors).
    """
    folder = tmp_path / "model"
    shutil.copytree(body, folder / inside)
    write(
        folder / inside,
        "sentence_bert_config.json",
        {"max_seq_length": limit, "do_lower_case": lower},
    )
    write_modules(
        folder,
        {"word_embedding_dimension": 32, **(pooling or {"pooling_mode": "mean"})},
        after,
        inside,
    )
    if prompts is not None:
        about = {
            "__version__": {},
            "prompts": prompts,
            "default_prompt_name": default,
            "similarity_fn_name": "cosine",
        }
        write(folder, "config_sentence_transformers.json", about)
    return folder


def static_folder(tmp_path, *, distilled):
    """A table of words as sentence-transformers or model2vec writes it; its tokenizer, its rows."""
    tokenizer, _ = bert_tokenizer()
    tokenizer.no_padding()
    tokenizer.enable_truncation(20)
    rows = torch.randn(tokenizer.get_vocab_size(), 8, generator=torch.Generator().manual_seed(0))
    write(
        tmp_path,
        "modules.json",
        [{"idx": 0, "name": "0", "path": "", "type": f"{MODULES}StaticEmbedding"}],
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if distilled:
        write(
            tmp_path,
            "config.json",
            {"model_type": "model2vec", "normalize": True, "max_length": 20},
        )
    save_file(
        {"embeddings" if distilled else "embedding.weight": rows}, tmp_path / "model.safetensors"
    )
    return tokenizer, rows
