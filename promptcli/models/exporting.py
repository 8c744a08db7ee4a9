"""Write an encoder for another program (``TARGETS``), and compare the vectors of both programs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from promptcli.backbones.backbone_files import (
    save_tokenizer,
    save_weights,
    tokenizer_definition,
    write_json,
)
from promptcli.backbones.lora import ALPHA, is_lora, is_transposed
from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    PREFIX_TUNING,
    TOKENIZER,
    WEIGHTS,
    ModelFolder,
    is_hub_id,
)
from promptcli.backbones.transformers_loading import opening
from promptcli.encoder.encoder import TorchEncoder, tuned_weights
from promptcli.encoder.prompts.deep_prefix import DeepPrefix
from promptcli.errors import UsageError, look_up, missing_libraries
from promptcli.extensions import Table
from promptcli.models import parity
from promptcli.models.card import publishable, write_card
from promptcli.models.entries import (
    MODEL_MANIFEST,
    TENSORS,
    Entry,
    with_backbone,
    write_manifest,
)
from promptcli.models.foreign_formats import read_model
from promptcli.models.loading import Model, open_torch_encoder, resolve_entry
from promptcli.models.saving import open_exact, save_encoder, tensors_outside_backbone
from promptcli.models.sentence_transformers_format import (
    Exported,
    InexactError,
    count_tokens,
    static_table,
    write_static,
)
from promptcli.notes import without_network
from promptcli.storage.files import atomic_folder, list_files
from promptcli.storage.tensors import save_tensors


def export_sentence_transformers(entry: Entry, encoder: TorchEncoder, folder: Path) -> Exported:
    """Fill a folder that ``SentenceTransformer(folder)`` loads: with a table of words, standard
    modules, or our module.
    """
    tool = "sentence-transformers"
    reason = None
    try:
        table = static_table(encoder, tool)
        write_static(table, folder)
        notes = table.notes
    except InexactError:
        reason, notes = save_encoder(entry, encoder, folder, target=tool)
    encode = _encode_with_modules
    load = 'SentenceTransformer("FOLDER")'
    if reason is not None:
        encode = _encode_with_our_module
        load = 'SentenceTransformer("FOLDER", trust_remote_code=True)'
        notes = (
            f"no configuration holds this recipe exactly: {reason}",
            "loading needs promptcli installed, and trust_remote_code=True; without the flag:"
            " as_sentence_transformer(encoder) of promptcli.models.st_module",
        )
    use = "from sentence_transformers import SentenceTransformer\n\n"
    use += f"vectors = {load}.encode(sentences)"
    exported = Exported(load, use, tool, notes=notes)
    return _compare(exported, encoder, parity.uncut_probes(encoder), folder, encode)


def _encode_with_modules(folder: Path, sentences: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    vectors: np.ndarray = model.encode(sentences, show_progress_bar=False)
    return vectors


def _encode_with_our_module(folder: Path, sentences: list[str]) -> np.ndarray:
    with without_network():
        entry = read_model(ModelFolder(str(folder), folder))
        return open_torch_encoder(entry, device="cpu", dtype="stored").encode(sentences)


def _encode_with_model2vec(folder: Path, sentences: list[str]) -> np.ndarray:
    from model2vec import StaticModel

    vectors: np.ndarray = StaticModel.from_pretrained(folder).encode(sentences)
    return vectors


def _compare(
    exported: Exported,
    encoder: TorchEncoder,
    probes: list[str],
    folder: Path,
    encode: Callable[[Path, list[str]], np.ndarray],
) -> Exported:
    """Return an export with the lowest cosine of the tool's vectors with the encoder's; if the tool
    is not installed, with a note.
    """
    tool = str(exported.tool)
    if missing_libraries(tool.replace("-", "_")):
        note = f"vectors were not compared: {tool} is not installed"
        return replace(exported, tool=None, notes=(*exported.notes, note))
    with opening("the exported folder"):
        vectors = encode(folder, probes)
    return replace(exported, cosine=parity.check_parity(encoder.encode(probes), vectors, tool))


def export_model2vec(entry: Entry, encoder: TorchEncoder, folder: Path) -> Exported:
    """Fill a folder that ``StaticModel.from_pretrained(folder)`` of model2vec loads."""
    table = static_table(encoder, "model2vec")
    # a checkpoint may have more rows than its tokenizer has tokens
    rows = table.rows[: count_tokens(table.definition)].contiguous()
    save_tensors({"embeddings": rows}, folder / WEIGHTS)
    write_json(folder / TOKENIZER, table.definition, indent=None)
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": rows.size(1),
        "normalize": False,
        "max_length": None,
        "embedding_dtype": "float32",
    }
    write_json(folder / CONFIG, config)
    load = 'StaticModel.from_pretrained("FOLDER")'
    use = f"from model2vec import StaticModel\n\nvectors = {load}.encode(sentences)"
    unknown = (
        "in model2vec words that the vocabulary does not know are left out, and no sentence is cut"
    )
    exported = Exported(load, use, "model2vec", notes=(*table.notes, unknown))
    return _compare(exported, encoder, list(parity.ENGLISH_PROBES), folder, _encode_with_model2vec)


def export_merged(entry: Entry, encoder: TorchEncoder, folder: Path) -> Exported:
    """Fill a folder that ``AutoModel.from_pretrained(folder)`` and ``--backbone folder`` load."""
    if not tuned_weights(encoder.tensors()):
        unchanged = f"the backbone of {entry.name!r} is {encoder.recipe.backbone!r}, unchanged"
        raise UsageError(f"{unchanged}: there is nothing to merge; onnx holds the complete encoder")
    save_weights(encoder.backbone, folder)
    definition = tokenizer_definition(encoder.backbone)
    save_tokenizer(encoder.backbone, folder, definition, encoder.backbone.max_tokens)
    load = 'AutoModel.from_pretrained("FOLDER")'
    use = f"from transformers import AutoModel\n\nmodel = {load}"
    notes = [
        f"the encoder is its recipe on this backbone: {encoder.recipe.prompt}"
        f" {encoder.recipe.pooling}"
    ]
    if tensors := tensors_outside_backbone(encoder):
        save_tensors(tensors, folder / TENSORS)
        notes.append(
            f"{TENSORS} has the tensors that are not part of a plain checkpoint:"
            f" {', '.join(sorted(tensors))}"
        )
    return Exported(load, use, notes=tuple(notes), backbone=".")


def export_peft(
    entry: Entry, encoder: TorchEncoder, folder: Path, *, base: str | None = None
) -> Exported:
    """Fill a folder that ``PeftModel.from_pretrained(base, folder)`` loads: with the adapter and
    the hub id of its base.
    """
    backbone = encoder.backbone
    lora = tuned_weights(encoder.tensors())
    if base is None and not is_hub_id(backbone.name):
        raise UsageError(
            f"the base {backbone.name!r} is not a model of the hub; give base=OWNER/NAME[@REVISION]"
        )
    name, _, revision = (base or f"{backbone.name}@{backbone.provenance.revision or ''}").partition(
        "@"
    )
    kind, tensors = _lora(encoder, lora) if is_lora(lora) else _prefix(encoder)
    origin = {"base_model_name_or_path": name, "revision": revision or None, "inference_mode": True}
    write_json(folder / ADAPTER_CONFIG, {"task_type": "FEATURE_EXTRACTION", **origin, **kind})
    save_tensors(tensors, folder / ADAPTER_WEIGHTS)
    if others := tensors_outside_backbone(encoder):  # for promptcli
        save_tensors(others, folder / TENSORS)
    load = f'PeftModel.from_pretrained(AutoModel.from_pretrained("{name}"), "FOLDER")'
    before = [encoder.recipe.prompt] if is_lora(lora) else []
    specs = [*before, encoder.pooling.spec, *(transform.spec for transform in encoder.transforms)]
    return Exported(
        load,
        f"model = {load}",
        base=name,
        notes=(f"peft holds only the adapter; its user has to apply: {' then '.join(specs)}",),
        backbone="." if is_lora(lora) else f"{name}@{revision}" if revision else name,
    )


def _prefix(encoder: TorchEncoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensor (p, 2 L d) of peft's prefix tuning, for a deep prefix
    (L, 2, h, p, d/h).
    """
    prompt = encoder.prompt
    backbone = encoder.backbone
    if not isinstance(prompt, DeepPrefix):
        raise InexactError(
            f"prompt {encoder.recipe.prompt!r} has no learned keys and values, and the backbone no"
            " LoRA; sentence-transformers and onnx hold the encoder, merged a tuned backbone"
        )
    if not backbone.family.takes_keys:
        raise InexactError(
            f"peft's prefix tuning does not reach family {backbone.provenance.family!r}, whose"
            " model takes no keys and values; onnx holds the encoder"
        )
    config = {
        "peft_type": PREFIX_TUNING,
        "num_virtual_tokens": prompt.length,
        "token_dim": backbone.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": backbone.n_heads,
        "num_layers": backbone.n_layers,
        "encoder_hidden_size": backbone.width,
        "prefix_projection": False,
    }
    numbers = prompt.keys_values.cpu().permute(3, 0, 1, 2, 4)
    return config, {"prompt_embeddings": numbers.reshape(len(numbers), -1).contiguous()}


def _lora(
    encoder: TorchEncoder, tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of peft's LoRA."""
    factors = {name: tensor for name, tensor in tensors.items() if name != ALPHA}
    modules = sorted({name.partition(".lora_")[0] for name in factors})
    alpha = float(tensors[ALPHA])
    config = {
        "peft_type": "LORA",
        "r": next(tensor.size(0) for name, tensor in factors.items() if ".lora_A." in name),
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "target_modules": modules,
        "fan_in_fan_out": any(
            map(is_transposed, map(encoder.backbone.model.get_submodule, modules))
        ),
        "bias": "none",
        "lora_dropout": 0.0,
    }
    names = {
        name: f"base_model.model.{name.replace('.default.weight', '.weight')}" for name in factors
    }
    return config, {names[name]: tensor for name, tensor in factors.items()}


@dataclass(frozen=True)
class ExportTarget:
    """A program or format that encoders are exported for."""

    #: Fills a folder, given an entry, the entry's encoder in float32 on the CPU, and the folder.
    write: Callable[..., Exported]
    takes: tuple[str, ...] = ()  #: further arguments of ``write``: ``base`` or ``int8``
    library: str = ""  #: the hub's name of the program, for a card; "": no card is written


TARGETS: Table[ExportTarget] = Table(
    "exports",
    {
        "sentence-transformers": ExportTarget(
            export_sentence_transformers, library="sentence-transformers"
        ),
        "model2vec": ExportTarget(export_model2vec, library="model2vec"),
        "peft": ExportTarget(export_peft, takes=("base",), library="peft"),
        "merged": ExportTarget(export_merged, library="transformers"),
    },
)


def export(
    encoder: Model,
    folder: str | Path,
    to: str = "sentence-transformers",
    *,
    base: str | None = None,
    int8: bool = False,
    offline: bool = False,
    force: bool = False,
) -> Exported:
    """Write an encoder for another program, in float32, and compare the program's vectors with the
    encoder's.

    The folder is written only if it holds the encoder exactly: every cosine is at least 0.99999.

    Args:
        encoder: An encoder, or what ``load`` takes.
        folder: Folder to write.
        to: ``sentence-transformers``; ``onnx`` or ``openvino``: the complete encoder as one graph;
            ``model2vec``: a static recipe as a table of words; ``peft``: a deep prefix or a LoRA;
            ``merged``: a tuned backbone as a plain checkpoint.
        base: For peft: the hub id to record as the base, e.g. OWNER/NAME@REVISION.
        int8: For onnx: also write 8-bit weights, and measure what they lose.
        offline: Never use the network.
        force: Overwrite an existing export.

    Raises:
        UsageError: There is no such target, or it cannot hold the encoder exactly.
        CheckFailedError: The other program's vectors are not the encoder's.
    """
    target = look_up("target", to, TARGETS)
    options = {name: value for name, value in (("base", base), ("int8", int8)) if value}
    for name in options:
        if name not in target.takes:
            takers = [other for other, row in TARGETS.items() if name in row.takes]
            raise UsageError(
                f"is for {', '.join(takers) or 'no target that is installed'}, not for {to}",
                parameter=name,
            )
    path = Path(folder)
    with without_network(offline), atomic_folder(path, marker=MODEL_MANIFEST, force=force) as new:
        entry = resolve_entry(encoder)
        exact = open_exact(entry)
        exported = target.write(entry, exact, new, **options)
        recipe = exact.recipe
        if target.library:
            write_card(
                new,
                entry,
                recipe.replace(backbone=exported.base or recipe.backbone),
                use=exported.use.replace('"FOLDER"', "folder"),
                library=target.library,
            )
        if not (new / MODEL_MANIFEST).is_file():
            backbone = exported.backbone or recipe.backbone
            entry = publishable(with_backbone(replace(entry, recipe=recipe), backbone))
            entry = replace(entry, fingerprint=exact.fingerprint, target=to, backbone={})
            write_manifest(new, entry)
        size = sum(file.size for file in list_files(new).values())
    load = exported.load.replace("FOLDER", str(path))
    return replace(exported, load=load, target=to, folder=path, bytes=size)
