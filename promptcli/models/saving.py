"""Write an encoder to a folder: as modules of sentence-transformers, else as one module that calls
promptcli.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.backbone_files import (
    is_tokenizer_file,
    save_tokenizer,
    save_weights,
    tokenizer_definition,
    whole_inputs,
)
from promptcli.backbones.checking import check_links
from promptcli.backbones.locating import weights_digest
from promptcli.backbones.names import words_only
from promptcli.backbones.provenance import OWN_TOKENIZER
from promptcli.encoder.encoder import TorchEncoder, make_encoder, tuned_weights
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.prompts.soft_template import TENSOR as SOFT
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.encoder.tensor_names import TUNED
from promptcli.errors import UsageError
from promptcli.grammar import split_name
from promptcli.models import parity, sentence_transformers_format
from promptcli.models.card import publishable, write_card
from promptcli.models.entries import (
    BACKBONE,
    MODEL_MANIFEST,
    MODULES,
    OUR_MODULE,
    TENSORS,
    Entry,
    with_backbone,
    write_manifest,
)
from promptcli.models.foreign_formats import FLAGS, MODES
from promptcli.models.loading import entry_from, open_model
from promptcli.models.sentence_transformers_format import InexactError, Module
from promptcli.storage.files import delete
from promptcli.storage.folders import atomic_folder
from promptcli.storage.tensors import save_tensors
from promptcli.storage.typed_documents import to_json

_MODELS = "sentence_transformers.models."
#: the files of a backbone besides weights and tokenizer
_CONFIGS = ("config.json", "adapter_config.json")
_READ = "[promptcli-mask]"  #: read in place of the template's mask; a sentence may contain the mask
#: in the order in which Pooling joins several
_FLAGS = {MODES[mode]: flag for flag, mode in FLAGS.items()}


def save(encoder: Encoder, folder: str | Path, *, force: bool = False) -> None:
    """Write an encoder into a folder that ``load`` and sentence-transformers open, completely or
    not at all.

    Args:
        encoder: Any encoder.
        folder: The folder to make.
        force: Replace an encoder in it.

    Raises:
        UsageError: The folder exists.
    """
    target = Path(folder)
    entry = entry_from(encoder, target.name)
    with atomic_folder(target, marker=MODEL_MANIFEST, force=force) as temporary:
        save_encoder(entry, open_model(encoder), temporary)
        use = f'import promptcli as pc\n\nvectors = pc.load("{target.name}").encode(sentences)'
        write_card(temporary, entry, encoder.recipe, use=use)


def write_modules(encoder: TorchEncoder, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Write Transformer, pooling and dense layers.

    Return the differences, and sentences without any.
    """
    if encoder.backbone.words_only:
        raise InexactError("a table of words has no layers")
    texts = dict(encoder.prompts)
    settings = {
        "prompts": texts,
        "default_prompt_name": encoder.default_prompt_name,
        "similarity_fn_name": "cosine",
    }
    if texts:
        encoder = encoder.with_leading_text("")
    pooling, weights = _pooling_modules(encoder)
    if not encoder.leading.counted:
        pooling[-1].config["include_prompt"] = False
    modules = [*pooling, *sentence_transformers_format.layers_of(encoder)]
    definition, rows = _template_tokens(encoder, read=weights == "mask")
    if weights == "mask":
        vocabulary = [""] * max(len(encoder.backbone.token_rows), max(rows) + 1)
        vocabulary[max(rows)] = _READ
        config = {"vocab": vocabulary, "word_weights": {_READ: 1.0}, "unknown_word_weight": 0.0}
        modules.insert(len(pooling) - 1, Module("WordWeights", config))
    layered = any(module.kind == "WeightedLayerPooling" for module in modules)
    save_weights(encoder.backbone, folder, rows=rows, output_hidden_states=layered)
    save_tokenizer(encoder.backbone, folder, definition, encoder.max_length)
    compared = _compare_ids(encoder, folder)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": False}
    if encoder.backbone.family.pooler and encoder.backbone.model.pooler is None:
        # else a random one is made there, with a warning
        reading["model_args"] = {"add_pooling_layer": False}
    (folder / "sentence_bert_config.json").write_text(to_json(reading), encoding="utf-8")
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODELS}Transformer"}]
    for number, module in enumerate(modules, 1):
        path = f"{number}_{module.kind}"
        listed.append(
            {"idx": number, "name": str(number), "path": path, "type": _MODELS + module.kind}
        )
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(
            to_json(module.config, indent=None), encoding="utf-8"
        )
        if module.tensors:
            save_tensors(module.tensors, folder / path / "model.safetensors")
    (folder / "modules.json").write_text(to_json(listed), encoding="utf-8")
    (folder / "config_sentence_transformers.json").write_text(
        to_json({"__version__": {}, **settings}), encoding="utf-8"
    )
    return compared


def _pooling_modules(encoder: TorchEncoder) -> tuple[list[Module], str]:
    pooling = encoder.recipe.parts.pooling
    width = encoder.backbone.width
    last = encoder.backbone.n_layers
    kinds = ["avg" if kind == "mask" else kind for kind in pooling.names]
    known = kinds == [kind for kind in _FLAGS if kind in kinds]
    if not known or pooling.states.name not in ("last", "last-two", "first-last", "layer"):
        raise InexactError(
            f"pooling {encoder.pooling.spec!r} is not a module of sentence-transformers"
        )
    if encoder.denoising.name != "none":
        raise InexactError("denoising depends on the length of the sentence, which no module has")
    layers = encoder.pooling.states.needs.layers
    modules = []
    if layers != {last}:
        layer_weights = torch.zeros(last + 1)
        layer_weights[sorted(layers)] = 1
        config = {"word_embedding_dimension": width, "layer_start": 0, "num_hidden_layers": last}
        modules.append(Module("WeightedLayerPooling", config, {"layer_weights": layer_weights}))
    flags = {flag: kind in kinds for kind, flag in _FLAGS.items()}
    modules.append(Module("Pooling", {"word_embedding_dimension": width, **flags}))
    return modules, "+".join(pooling.names)


def _template_tokens(
    encoder: TorchEncoder, *, read: bool
) -> tuple[dict[str, Any], dict[int, Tensor]]:
    backbone = encoder.backbone
    template = encoder.template
    prompt = encoder.prompt
    if type(prompt) not in (Prompt, SoftTemplate):
        raise InexactError(
            f"prompt {split_name(prompt.spec)[0]!r} is more than tokens around the sentence"
        )
    soft = prompt.slots if isinstance(prompt, SoftTemplate) else []
    if soft and template.prepare(["\0"], False)[0].strip() != "\0":
        raise InexactError(
            "words of a soft template that touch the sentence have no ids in this vocabulary"
        )
    definition = tokenizer_definition(backbone)
    names = [f"[promptcli-{number}]" for number in range(len(soft))] + ([_READ] if read else [])
    if names:
        ids = sentence_transformers_format.add_tokens(definition, names)
    else:
        ids = []
    whole = [*template.prefix, *template.suffix]
    if soft:
        rows = dict(zip(ids, prompt.tensors()[SOFT], strict=False))
    else:
        rows = {}
    places = [*soft, *([template.masks[(encoder.pooling.needs.slot or 1) - 1]] if read else [])]
    if read:
        rows[ids[-1]] = backbone.token_rows[backbone.tokenizer.mask].detach()
    for place, token in zip(places, ids, strict=True):
        whole[place] = token
    left = whole[: len(template.prefix)]
    right = whole[len(template.prefix) :]
    return sentence_transformers_format.with_template(
        encoder, definition, left=left, right=right
    ), rows


def _compare_ids(encoder: TorchEncoder, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    probes = [
        *parity.PROBES,
        parity.TOO_LONG,
        parity.BLANK,
    ]
    theirs = whole_inputs(folder, probes, encoder.max_length)
    inputs = encoder.inputs(probes)
    left = len(encoder.template.prefix)
    right = len(encoder.template.suffix)
    same = [
        len(ids) == len(ours) and ids[left : len(ids) - right] == ours[left : len(ours) - right]
        for ids, ours in zip(theirs, inputs.rows, strict=True)
    ]
    if not all(equal or cut for equal, cut in zip(same[:-1], inputs.truncated, strict=False)):
        raise InexactError("transformers' tokenizer of this family does not give the encoder's ids")
    notes = []
    if sentence_transformers_format.changes_ends(encoder.recipe):
        notes.append(sentence_transformers_format.TYPED_SPECIAL)
    if not all(same[:-1]):
        notes.append(
            f"a sentence that is cut at {encoder.max_length} tokens loses the mark of the template"
            " after it"
        )
    if not same[-1]:
        notes.append("an empty sentence has another vector there")
    return tuple(notes), [probe for probe, equal in zip(parity.PROBES, same, strict=False) if equal]


def save_encoder(
    entry: Entry,
    encoder: TorchEncoder,
    folder: Path,
    *,
    backbone: str | None = None,
    target: str | None = None,
) -> tuple[str | None, tuple[str, ...], list[str]]:
    """Write an encoder into an empty folder.

    ``target`` is ``to`` of ``export``, ``backbone`` the name of one left out.

    Returns why modules of sentence-transformers cannot express the recipe (None: they do), the
    differences, and sentences whose vectors are the same there. One in less than float32 is made
    again from its entry.
    """
    if encoder.backbone.dtype != torch.float32:
        encoder = open_model(entry, device="cpu", dtype="float32")
    check_shareable(encoder)
    own = encoder.backbone
    tensors = encoder.tensors()
    known: dict[
        str, str
    ] = {}  # hashes of an unchanged backbone's weights as written here and as loaded
    notes: tuple[str, ...] = ()
    probes = [*parity.PROBES]
    reason: str | None = None
    if backbone:
        reason = f"the backbone {backbone} is not in it"
    if backbone is None:
        try:
            notes, probes = write_modules(encoder, folder)
        except InexactError as error:
            reason = str(error)
            for path in folder.iterdir():
                delete(path)
            copy_backbone(own.name, own.folder, folder / BACKBONE, weights=not own.merged)
            if own.merged:
                save_weights(own, folder / BACKBONE)
        else:
            copy_backbone(own.name, own.folder, folder / OWN_TOKENIZER, weights=False)
            if not (tuned_weights(tensors) or own.merged):
                known = {
                    "written": weights_digest(folder),
                    "weights": own.provenance.weights_sha256,
                }
            tensors = tensors_outside_backbone(encoder)
    if reason is not None:
        (folder / MODULES).write_text(OUR_MODULE, encoding="utf-8")
    if tensors:
        save_tensors(tensors, folder / TENSORS)
    transfer = entry.transfer and make_encoder(entry.transfer, own, encoder.tensors()).recipe
    entry = replace(entry, recipe=encoder.recipe, transfer=transfer)  # every name written out
    placed = publishable(with_backbone(entry, backbone or ("." if reason is None else BACKBONE)))
    write_manifest(
        folder, replace(placed, fingerprint=encoder.fingerprint, target=target, backbone=known)
    )
    return reason, notes, probes


def check_shareable(encoder: TorchEncoder) -> None:
    """Refuse to pass on weights that a link in the backbone's folder takes from elsewhere on this
    machine.
    """
    own = encoder.backbone
    if not words_only(own.name):
        check_links(f"backbone {own.name!r}", own.folder, own.folder.glob("*.safetensors"))


def tensors_outside_backbone(encoder: TorchEncoder) -> dict[str, Tensor]:
    """Return an encoder's tensors outside the backbone."""
    return {
        name: tensor for name, tensor in encoder.tensors().items() if not name.startswith(TUNED)
    }


def copy_backbone(name: str, source: Path, target: Path, *, weights: bool = True) -> None:
    """Copy only the tokenizer of a backbone's folder, and with ``weights`` its configuration and
    weights.
    """
    if name.startswith("glove:"):
        raise UsageError("word vectors are a file: share it, and use it with the model static-avg")
    tokenizer = source / OWN_TOKENIZER
    files = [
        path
        for path in (tokenizer if tokenizer.is_dir() else source).iterdir()
        if is_tokenizer_file(path)
    ]
    if weights:
        stored = [
            path
            for path in source.iterdir()
            if path.match("*.safetensors*") and path.name != TENSORS
        ]
        files += [path for path in (*map(source.joinpath, _CONFIGS), *stored) if path.is_file()]
    check_links(f"backbone {name!r}", source, files)
    target.mkdir()
    for path in files:
        shutil.copyfile(path, target / path.name)
