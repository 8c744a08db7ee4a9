"""Pre-trained language models: shipped, a local folder, or a hub id.

Safetensors only, no remote code.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from promptcli.backbones import checking, seam
from promptcli.backbones.backbone import OWN_TOKENIZER, Backbone, Provenance
from promptcli.backbones.bert import load_bert, read_bert_config
from promptcli.backbones.checking import opening
from promptcli.backbones.devices import computes, with_fast_products
from promptcli.backbones.families import FAMILIES, family_of
from promptcli.backbones.gguf_files import SUFFIX, folder_of
from promptcli.backbones.lora import CONFIG, WEIGHTS, base_of, merge_lora, read_adapter
from promptcli.backbones.states import Batch, Needs
from promptcli.backbones.tokenizer import PieceTokenizer, added_around, read_wordpiece
from promptcli.errors import NotFoundError, UsageError, did_you_mean, unknown
from promptcli.notes import is_offline, note, warn, without_network
from promptcli.storage.files import sha256

#: Backbones inside the package, by name.
SHIPPED: dict[str, Path] = {"mini-bert": Path(__file__).parents[1] / "shipped" / "mini-bert"}

_MISTYPED = 0.75  # a word so like a shipped name is taken for it, mistyped, before the hub is asked
_ENCODER = "mini"  # the shipped encoder, trained on the shipped backbone

_MARKS = ("config.json", CONFIG)  # one of them is in every folder of a language model
# as safetensors writes them
_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NUMBERS = "tensors.safetensors"  # an encoder's own, beside its backbone
_SHARDS = "model.safetensors.index.json"  # weights in several files: which tensor is in which
#: Files of weights that are not read, beside ``*.bin``, which can be converted -> what they are.
_OTHER_WEIGHTS = {
    **dict.fromkeys(("*.pt", "*.pth", "*.ckpt", "*.pkl"), "a pickle, which can run code"),
    "*.h5": "of TensorFlow",
    "*.msgpack": "of Flax",
    "*.ot": "of Rust",
    "*.onnx": "a graph",
}

#: Words of many scripts, the same number in each text: a vocabulary that cannot distinguish them
#: knows no language.
PROBES = (
    "cat runs 12 , кот γάτα 猫 ねこ 고양이 قطة แมว बिल्ली",
    "dog sees 37 . пёс σκύλος 犬 いぬ 개 كلب หมา कुत्ता",
)


def load_pretrained(
    name: str, *, device: str = "cpu", dtype: torch.dtype | None = None
) -> Backbone:
    """Load a pre-trained language model in eval mode.

    A folder of a peft adapter is its base with the adapter added.
    """
    if name == _ENCODER:
        raise NotFoundError(
            f"{name} is an encoder, for `model`; the language model under it: `backbone`"
            f" {name}-bert"
        )
    folder, revision = locate(name, one_of=(*_MARKS, "tokenizer.json"))
    if checking.is_table(folder):
        from promptcli.backbones.word_vectors import load_table

        return load_table(name, folder, revision, device=device)
    if not any((folder / mark).is_file() for mark in _MARKS):
        raise NotFoundError(f"folder {name!r} has no {_MARKS[0]}: not a model folder")
    what = f"backbone {name!r}"
    if (base := _base(what, folder)) is not None:
        backbone = load_pretrained(base, device=device, dtype=dtype)
        return _with_adapter(backbone, name, folder, revision)
    with opening(what):
        config = checking.read_config(what, folder)
        family = _known_family(what, config)
        weights = weight_files(what, folder)
        checking.check_folder(what, folder, config)
        names = checking.check_files(what, weights, config)
        causal = FAMILIES[family].causal
        tokens = folder / OWN_TOKENIZER
        if not tokens.is_dir():
            tokens = folder
        tokenizer: Any = None
        if family == "bert":
            tokenizer = read_wordpiece(tokens, config)
        if tokenizer is None:
            tokenizer = checking.load_tokenizer(tokens)
        pieces = PieceTokenizer(tokenizer, what, causal=causal)
        if causal and dtype is None:
            dtype = _stored_dtype(weights, device)
        if (plain := read_bert_config(family, config)) is not None:
            model, info = load_bert(plain, FAMILIES[family], weights, names)
        else:
            model, info = _load_body(
                folder, family, names, dtype if causal and dtype else torch.float32
            )
        if causal:  # large: probed on its own device
            model.to(device)
        checking.check_loaded(what, model, info)
        checking.check_vocabulary(what, tokens, pieces, len(model.get_input_embeddings().weight))
        provenance = Provenance(
            name, family, revision, _known_as(folder, weights_digest(folder)), pieces.sha256
        )
        backbone = Backbone(
            model=with_fast_products(model.eval()),
            tokenizer=pieces,
            provenance=provenance,
            folder=folder,
            tensor_names=names,
        )
        check_probe(what, backbone)
        if causal:  # its attention is always the seam's
            backbone.require_seam("a causal model")
        model.to(device=device, dtype=dtype or torch.float32)
    return backbone


def _base(what: str, folder: Path) -> str | None:
    """Return the backbone of a folder's adapter, None if it has no adapter.

    An adapter of an adapter is refused.
    """
    base = base_of(what, folder)
    if base is not None and base_of(f"backbone {base!r}", locate(base)[0]) is not None:
        raise UsageError(
            f"{what} is an adapter of {base!r}, an adapter itself; merge that one (peft:"
            " merge_and_unload)"
        )
    return base


def _with_adapter(backbone: Backbone, name: str, folder: Path, revision: str | None) -> Backbone:
    what = f"backbone {name!r}"
    merge_lora(what, backbone.model, read_adapter(what, folder, backbone.model.base_model_prefix))
    both = backbone.provenance.weights_sha256 + sha256(folder / CONFIG) + sha256(folder / WEIGHTS)
    digest = hashlib.sha256(both.encode()).hexdigest()
    backbone.merged = True
    backbone.provenance = replace(
        backbone.provenance, backbone=name, revision=revision, weights_sha256=digest
    )
    return backbone


def family_and_width(name: str) -> tuple[str, int]:
    """Return a backbone's family and the width of its hidden states, by its config.json alone."""
    what = f"backbone {name!r}"
    with without_network():
        folder, _ = locate(name)
        base = _base(what, folder)
    if base is not None:
        return family_and_width(base)
    config = checking.read_config(what, folder)
    widths = [config.get(field) for field in ("hidden_size", "d_model", "n_embd", "dim")]
    width = next((width for width in widths if isinstance(width, int)), None)
    family = _known_family(what, config)
    if width is None:
        raise UsageError(f"config.json of {what} names no width")
    return family, width


def _known_family(what: str, config: dict[str, Any]) -> str:
    family = family_of(config)
    if family is None:
        raise UsageError(f"config.json of {what} is not a JSON object with a model_type")
    if family not in FAMILIES:
        raise unknown(f"family of {what}", family, FAMILIES)
    return family


def added_after(folder: Path) -> str:
    """Return the text of the tokens that a folder's tokenizer itself adds after an input."""
    with opening(f"the tokenizer of {folder}"):
        tokenizer = checking.load_tokenizer(folder)
        return "".join(tokenizer.convert_ids_to_tokens(added_around(tokenizer)[1]))


def locate(
    name: str, *, files: Sequence[str] = _FILES, one_of: Sequence[str] = _MARKS
) -> tuple[Path, str | None]:
    """Return the folder of a backbone and its hub revision (None unless it is a hub model).

    It holds one of the files ``one_of``; ``files`` are patterns of files to fetch. For names see
    ``load_backbone``; a revision may contain slashes.
    """
    if name in SHIPPED:
        return SHIPPED[name], None
    if Path(name).is_dir():
        if not any((Path(name) / file).is_file() for file in one_of):
            raise NotFoundError(f"folder {name!r} has no {one_of[0]}: not a model folder")
        checking.check_regular_files(f"folder {name!r}", Path(name), files)
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/"):
            note(
                f"{name} is a folder here, and folders go first; the hub's model of that name:"
                f" {name}@main"
            )
        return Path(name), None
    if name.endswith(SUFFIX):
        return folder_of(name), None
    repository, _, wanted = name.partition("@")
    if name.startswith((".", "/", "~")) or repository.count("/") > 1:
        raise NotFoundError(
            f"no backbone folder {name!r}; shipped: {', '.join(SHIPPED)}; else give a folder or"
            " hub id"
        )
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return _snapshot(repository, wanted or None, files, one_of, local=True)
    except (LocalEntryNotFoundError, FileNotFoundError):
        _check_worth_asking(name)
    except HFValidationError:
        known = f"shipped: {', '.join(SHIPPED)}; else give a folder or a hub id"
        raise NotFoundError(f"no backbone {name!r}; {known}") from None
    warn(f"downloading backbone {repository} from the Hugging Face hub")
    try:
        return _snapshot(repository, wanted or None, files, one_of, local=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = checking.reason(error)
        if isinstance(error, LocalEntryNotFoundError):
            why = "it cannot be reached"
        raise NotFoundError(f"backbone {name!r} could not be fetched from the hub: {why}") from None


def _check_worth_asking(name: str) -> None:
    """Refuse to ask the hub if that is forbidden, or if a file, a folder or a known model is more
    likely meant.
    """
    if os.path.exists(name):
        raise NotFoundError(
            f"{name!r} is a file; give a folder, a hub id, or what is shipped: {', '.join(SHIPPED)}"
        )
    if cached := cached_as(name):
        raise NotFoundError(f"no backbone {name!r}; did you mean {cached}? {on_hub(name)}")
    if mistyped := did_you_mean(name, SHIPPED, likeness=_MISTYPED):
        raise NotFoundError(f"no backbone {name!r}{mistyped} {on_hub(name)}")
    parent = Path(name).parent
    if "/" in name and "@" not in name and parent.is_dir():
        near = did_you_mean(name, [str(path) for path in parent.iterdir() if path.is_dir()])
        raise NotFoundError(
            f"folder {str(parent)!r} has no {Path(name).name!r}{near or ';'} {on_hub(name)}"
        )
    if is_offline():
        raise NotFoundError(
            f"backbone {name!r} is not in the local cache and `offline` forbids the network"
        )


def on_hub(name: str) -> str:
    """Return what a message says for the case that the hub's model is meant."""
    return f"for a hub repository of that name write {name}@main"


def cached_as(name: str) -> str | None:
    """Return the hub id of a model in the hub's cache that is called ``name`` but for its owner.

    None if there is none.

    In the cache, OWNER/NAME is the folder ``models--OWNER--NAME``.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        _, owner, model = folder.name.split("--", 2)
        if model.lower() == name.lower():
            return f"{owner}/{model}"
    return None


def _snapshot(
    repository: str,
    revision: str | None,
    files: Sequence[str],
    one_of: Sequence[str],
    *,
    local: bool,
) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download

    folder = Path(
        snapshot_download(
            repository, revision=revision, allow_patterns=[*files], local_files_only=local
        )
    )
    if not any((folder / file).is_file() for file in one_of):
        raise FileNotFoundError(f"{repository} has no {one_of[0]}")
    return folder, folder.name


def weights_digest(folder: Path) -> str:
    """Return the hash of a folder's configuration and weights."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        if path.name != _NUMBERS:
            digest.update(sha256(path).encode())
    return digest.hexdigest()


def _known_as(folder: Path, digest: str) -> str:
    record = checking.json_field(folder / "promptcli.json", "backbone")
    if isinstance(record, dict) and record.get("written") == digest:
        return str(record["weights"])
    return digest


def weight_files(what: str, folder: Path) -> list[Path]:
    """Return the safetensors files, in order; pickles are refused with the reason."""
    shards = checking.json_field(folder / _SHARDS, "weight_map")
    if isinstance(shards, dict):
        for name in set(map(str, shards.values())):
            checking.named_inside(what, folder, name, _SHARDS)
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != _NUMBERS)
    if files:
        return files
    for path in sorted(folder.glob("*.bin")):
        convert = "`promptcli models import FOLDER --name NAME --convert`"
        raise UsageError(
            f"{what} has its weights in {path.name} only; a pickle can run code: convert it,"
            f" {convert}"
        )
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        raise UsageError(
            f"{what} has its weights in {path.name} only; give that file: `backbone` {path}"
        )
    for pattern, kind in _OTHER_WEIGHTS.items():
        for path in sorted(folder.glob(pattern)):
            raise UsageError(
                f"{what} has its weights in {path.name} only, {kind}; take a checkpoint in"
                " safetensors"
            )
    raise UsageError(f"{what} has no *.safetensors weights")


def _stored_dtype(weights: Sequence[Path], device: str) -> torch.dtype:
    """Return the dtype of most tensors of the files if the device computes in it, else float32."""
    dtypes: Counter[str] = Counter()
    for path in weights:
        with safe_open(path, framework="pt") as file:
            dtypes.update(file.get_slice(name).get_dtype() for name in file.keys())
    for name, _ in dtypes.most_common(1):
        stored = _DTYPES.get(name, torch.float32)
        if computes(stored, device):
            return stored
    return torch.float32


def _load_body(
    folder: Path, family: str, names: frozenset[str], dtype: torch.dtype
) -> tuple[Any, dict[str, Any]]:
    """Return the encoder without heads, and transformers' report of its tensors.

    A pooler only if it has weights.
    """
    options: dict[str, Any] = {"dtype": dtype}
    if FAMILIES[family].seam:
        options["attn_implementation"] = seam.register()
    if FAMILIES[family].pooler:
        options["add_pooling_layer"] = any(
            name.endswith(("pooler.dense.weight", "pooler.weight")) for name in names
        )
    return checking.load_model(checking.transformers().AutoModel, folder, **options)


def check_probe(what: str, backbone: Backbone) -> None:
    """Compute two different texts; refuse a backbone that does not tell them apart."""
    tokenizer = backbone.tokenizer
    first, second = tokenizer.encode(PROBES)
    pair = []
    for text, other in ((first, second), (second, first)):
        shared = {*other, *tokenizer.specials}
        pair += [token for token in text if token not in shared][:1]
    if len(pair) < 2:
        raise UsageError(
            f"the vocabulary of {what} has no word of any script: different texts look the same"
            " to it"
        )
    ids = torch.tensor(
        [[*tokenizer.start, token, *tokenizer.end] for token in pair], device=backbone.device
    )
    batch = Batch(ids, torch.full((2,), ids.size(1), device=backbone.device))
    with torch.inference_mode():
        states = (
            backbone.run(batch, Needs(layers=frozenset({backbone.n_layers})))
            .layers[backbone.n_layers]
            .mean(1)
        )
    if not torch.isfinite(states).all():
        raise UsageError(f"{what} computes vectors that are not finite: its weights are broken")
    if (states[0] - states[1]).abs().max() <= 1e-6 * states.abs().max():
        raise UsageError(
            f"{what} computes the same vector for different texts: its weights are broken"
        )
