"""``--to model2vec``: a static recipe as the table of words that model2vec and StaticEmbedding read."""

import importlib.util
import json
from pathlib import Path

from promptcli.backbones.checking import opening
from promptcli.interchange.card import model_card
from promptcli.interchange.exactness import PROBES, check_parity
from promptcli.interchange.static_table import static_table
from promptcli.interchange.target import Source, Written
from promptcli.storage.documents import to_json
from promptcli.storage.tensors import save_tensors

_UNKNOWN = "words that the vocabulary does not know are left out there, and no sentence is cut"


def export_model2vec(source: Source, folder: Path) -> Written:
    """Fill a folder that ``StaticModel.from_pretrained(folder)`` loads, and ``SentenceTransformer(folder)``.

    Raises:
        InexactError: The recipe is no table; with the reason.
        CheckFailedError: model2vec's vectors are not the encoder's.
    """
    encoder, entry = source.encoder, source.entry
    table = static_table(encoder)
    rows = table.rows[: 1 + max(_ids(table.definition))].contiguous()  # model2vec takes a row a token, no more
    table.definition["truncation"] = None
    save_tensors({"embeddings": rows}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(table.definition, ensure_ascii=False), encoding="utf-8")
    about = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": rows.size(1),
        "normalize": False,
        "max_length": None,
        "embedding_dtype": "float32",
    }
    (folder / "config.json").write_text(to_json(about), encoding="utf-8")
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(to_json(modules), encoding="utf-8")
    use = "from model2vec import StaticModel\n\nvectors = StaticModel.from_pretrained(folder).encode(sentences)"
    card = model_card(
        entry.name, encoder.recipe, use=use, library="model2vec", provenance=entry.provenance, scores=entry.scores
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    load, notes = 'StaticModel.from_pretrained("FOLDER")', (*table.notes, _UNKNOWN)
    if importlib.util.find_spec("model2vec") is None:
        return Written(load, notes=(*notes, "vectors were not compared: model2vec is not installed"))
    import model2vec

    known = [row for row in PROBES if encoder.backbone.tokenizer.unk not in encoder.inputs([row]).rows[0]]
    probes = [probe for probe, cut in zip(known, encoder.inputs(known).truncated, strict=True) if not cut]
    with opening("the exported folder"):
        theirs = model2vec.StaticModel.from_pretrained(folder).encode(probes)
    there = theirs.any(axis=1)  # that a vector is zero is said in the notes
    return Written(load, "model2vec", check_parity(encoder.encode(probes)[there], theirs[there], "model2vec"), notes)


def _ids(definition: dict) -> list[int]:  # type: ignore[type-arg]
    vocabulary = definition["model"]["vocab"]
    own = list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
    return [*own, *(token["id"] for token in definition["added_tokens"])]
