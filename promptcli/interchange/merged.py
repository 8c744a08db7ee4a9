"""``--to merged``: a tuned backbone as a plain checkpoint, for whatever loads those."""

from pathlib import Path

from promptcli.backbones.saving import save_tokenizer, save_weights, tokenizer_definition
from promptcli.encoder.encoder import TUNED, tuned_weights
from promptcli.errors import UsageError
from promptcli.interchange.card import model_card
from promptcli.interchange.target import Source, Written


def export_merged(source: Source, folder: Path) -> Written:
    """Fill a folder that ``AutoModel.from_pretrained(folder)`` loads, and ``--backbone folder``.

    Raises:
        UsageError: The backbone is as it was pre-trained: there is nothing to merge.
    """
    encoder, entry = source.encoder, source.entry
    if not tuned_weights(encoder.tensors()):
        raise UsageError(
            f"the backbone of {entry.name!r} is {encoder.recipe.backbone!r} as it was pre-trained, so there is nothing"
            " to merge; --to sentence-transformers and --to onnx hold the whole encoder"
        )
    save_weights(encoder.backbone, folder)
    definition = tokenizer_definition(encoder.backbone)
    save_tokenizer(encoder.backbone, folder, definition, encoder.backbone.max_tokens)
    use = "from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained(folder)"
    card = model_card(
        entry.name, encoder.recipe, use=use, library="transformers", provenance=entry.provenance, scores=entry.scores
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    kept = sorted(name for name in encoder.tensors() if not name.startswith(TUNED))
    notes = [f"the encoder is its recipe on this backbone: {encoder.recipe.prompt} {encoder.recipe.pooling}"]
    if kept:
        notes.append(f"not in a plain checkpoint, and left out: {', '.join(kept[:4])}{' ...' if kept[4:] else ''}")
    return Written('AutoModel.from_pretrained("FOLDER")', notes=tuple(notes))
