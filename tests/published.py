"""Small random folders with the files and configurations of the models that people type first."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tiny import SENTENCES, SIZES, random_model

MODULES = "sentence_transformers.models."
_TEXTS = [*SENTENCES, "Instruct: given a question\nQuery: what is it", "query: passage: search_query: task: result |"]
_IDENTITY = "torch.nn.modules.linear.Identity"


def _added(text: str, **flags: Any) -> AddedToken:
    return AddedToken(text, special=True, **{"normalized": False, **flags})


def _around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    names = [name for name in single.split() if name != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )
    return tokenizer


def _wordpiece(specials: list[str], unk: str, single: str) -> Tokenizer:
    """BERT's and MPNet's: lower-casing WordPiece, with the padding and truncation that the published files carry."""
    letters = sorted(set(" ".join(_TEXTS).lower()) - {" ", "\n"})
    words = sorted({word.strip(".,;!?\"'|:") for text in _TEXTS for word in text.lower().split()} - {"", *letters})
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
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    made = _wordpiece(list(names.values()), "[UNK]", "[CLS] $A [SEP]")
    about = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "model_max_length": 512}
    return made, {**about, "tokenizer_class": "BertTokenizer", **{f"{key}_token": name for key, name in names.items()}}


def mpnet_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    made = _wordpiece(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], "[UNK]", "<s> $A </s>")
    names = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "[UNK]", "pad": "<pad>", "mask": "<mask>"}
    about = {"do_lower_case": True, "tokenizer_class": "MPNetTokenizer", "model_max_length": 512}
    return made, {**about, **{f"{key}_token": name for key, name in names.items()}}


def xlmr_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    names = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" {2,}", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    specials = ["<s>", "<pad>", "</s>", "<unk>", _added("<mask>", lstrip=True)]
    trainer = trainers.UnigramTrainer(vocab_size=170, special_tokens=specials, unk_token="<unk>")
    tokenizer.train_from_iterator(_TEXTS, trainer)
    about = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512}
    return _around(tokenizer, "<s> $A </s>"), {**about, **{f"{key}_token": name for key, name in names.items()}}


def _byte_level(specials: list[Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=420, special_tokens=specials, initial_alphabet=alphabet)
    )
    return tokenizer


def modernbert_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokenizer = _byte_level([_added(name, lstrip=name == "[MASK]") for name in names.values()])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    return _around(tokenizer, "[CLS] $A [SEP]"), {**about, **{f"{key}_token": name for key, name in names.items()}}


def qwen_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = _byte_level([_added("<|endoftext|>"), _added("<|im_start|>"), _added("<|im_end|>")])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, "padding_side": "left"}
    about |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}
    return _around(tokenizer, "$A <|endoftext|>"), about


def gemma_tokenizer() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}
    specials = [_added(name) for name in names.values()]
    letters = sorted({letter for text in _TEXTS for letter in text.replace(" ", "▁")})
    tokenizer.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=letters)
    )
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "add_eos_token": True}
    made = _around(tokenizer, "<bos> $A <eos>")
    return made, {**about, **{f"{key}_token": name for key, name in names.items()}}


_BERT = {**SIZES, "max_position_embeddings": 512}
_XLMR = {**_BERT, "max_position_embeddings": 514, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_CAUSAL = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
_GEMMA = {
    **_CAUSAL,
    "max_position_embeddings": 2048,
    "sliding_window": 9,
    "use_bidirectional_attention": True,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_MODERNBERT = {
    **_BERT,
    "max_position_embeddings": 8192,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    "pad_token_id": 3,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _pooling(width: int, mode: str, **about: Any) -> dict[str, Any]:
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": width, **{f"pooling_mode_{one}": one == mode for one in modes}, **about}


def _dense(rows: int, columns: int, number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))
    config = {"in_features": columns, "out_features": rows, "bias": False, "activation_function": _IDENTITY}
    return "Dense", config, {"linear.weight": weight}


_NORM = ("Normalize", {}, {})
_QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_E5 = {"query": "query: ", "passage": "passage: "}
_GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}

#: Model -> configuration, its fields, tokenizer, limit of the module, lower-casing, pooling, what comes after, prompts.
MODELS: dict[str, tuple[Any, dict[str, Any], Any, Any, bool, dict[str, Any], list[Any], dict[str, str] | None]] = {
    "all-MiniLM-L6-v2": (hf.BertConfig, _BERT, bert_tokenizer, 256, False, _pooling(16, "mean_tokens"), [_NORM], None),
    "all-MiniLM-L12-v2": (hf.BertConfig, _BERT, bert_tokenizer, 128, False, _pooling(16, "mean_tokens"), [_NORM], None),
    "all-mpnet-base-v2": (
        hf.MPNetConfig, _XLMR, mpnet_tokenizer, 384, False, _pooling(16, "mean_tokens"), [_NORM], None,
    ),
    "bge-small-en-v1.5": (hf.BertConfig, _BERT, bert_tokenizer, 512, True, _pooling(16, "cls_token"), [_NORM], None),
    "e5-base-v2": (hf.BertConfig, _BERT, bert_tokenizer, 512, False, _pooling(16, "mean_tokens"), [_NORM], _E5),
    "gte-base": (hf.BertConfig, _BERT, bert_tokenizer, 512, False, _pooling(16, "mean_tokens"), [_NORM], None),
    "multilingual-e5-small": (  # a BERT with XLM-R's tokenizer
        hf.BertConfig, {**_BERT, "tokenizer_class": "XLMRobertaTokenizer"}, xlmr_tokenizer, 512, False,
        _pooling(16, "mean_tokens"), [_NORM], _E5,
    ),
    "multilingual-e5-base": (
        hf.XLMRobertaConfig, _XLMR, xlmr_tokenizer, 512, False, _pooling(16, "mean_tokens"), [_NORM], None,
    ),
    "paraphrase-multilingual-MiniLM-L12-v2": (
        hf.BertConfig, _BERT, xlmr_tokenizer, 128, False, _pooling(16, "mean_tokens"), [], None,
    ),
    "paraphrase-multilingual-mpnet-base-v2": (
        hf.XLMRobertaConfig, _XLMR, xlmr_tokenizer, 128, False, _pooling(16, "mean_tokens"), [], None,
    ),
    "gte-modernbert-base": (
        hf.ModernBertConfig, _MODERNBERT, modernbert_tokenizer, 8192, False, _pooling(16, "cls_token"), [], None,
    ),
    "modernbert-embed-base": (
        hf.ModernBertConfig, _MODERNBERT, modernbert_tokenizer, 8192, False, _pooling(16, "mean_tokens"), [_NORM],
        {"search_query": "search_query: ", "search_document": "search_document: "},
    ),
    "Qwen3-Embedding-0.6B": (
        hf.Qwen3Config, {**_CAUSAL, "max_position_embeddings": 32768, "pad_token_id": 0}, qwen_tokenizer, None, False,
        _pooling(16, "lasttoken", include_prompt=True), [_NORM], {"query": _QUERY, "document": ""},
    ),
    "embeddinggemma-300m": (
        hf.Gemma3TextConfig, _GEMMA, gemma_tokenizer, None, False, _pooling(16, "mean_tokens", include_prompt=True),
        [_dense(32, 16, 1), _dense(16, 32, 2), _NORM], _GEMMA_PROMPTS,
    ),
}  # fmt: skip


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
    """Write modules.json and what it lists but the Transformer, which stands ``inside``.

    Args:
        folder: Of the model.
        pooling: Configuration of its Pooling.
        after: Kind, or the whole name of a class, configuration, tensors of each further module.
        inside: Folder of the Transformer in it.
    """
    modules = [("Transformer", inside), ("Pooling", "1_Pooling")]
    write(folder, "1_Pooling/config.json", pooling)
    for number, (kind, config, tensors) in enumerate(after, 2):
        modules.append((kind, f"{number}_{kind}"))
        write(folder, f"{number}_{kind}/config.json", config)
        if tensors:
            save_file(tensors, folder / f"{number}_{kind}" / "model.safetensors")
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind if "." in kind else f"{MODULES}{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    write(folder, "modules.json", listed)


def save_published(name: str, folder: Path) -> Path:
    """Write the folder of a published model, small and random; return it."""
    config_class, fields, make_tokenizer, limit, lower, pooling, after, prompts = MODELS[name]
    save_body(folder, config_class, fields, make_tokenizer)
    write(folder, "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": lower})
    write_modules(folder, pooling, after)
    about = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write(folder, "config_sentence_transformers.json", {"__version__": {}, **about})
    return folder
