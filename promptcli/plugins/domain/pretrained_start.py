"""The start of ``adapt`` after masked language modelling on the texts.

Masked language modelling needs a head that predicts words. A model of sentences has none: it began
as a masked language model, its backbone, and has left it so far that the backbone's head no longer
fits. So the backbone is pre-trained further on the texts with its head, and what that changed in
its weights is added to those of the model (task arithmetic: Ilharco et al., 2023, "Editing Models
with Task Arithmetic"). The model keeps what it has learned of sentences, which one that begins at
the backbone would lack.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import promptcli as pc
from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import UsageError
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.storage import files

#: Tokens of a step: fewer than a new model's, whose runs are longer.
BATCH_TOKENS = 1024
#: Backbone -> settings of its pre-training other than the command's own: those that its page gives.
_SETTINGS: dict[str, dict[str, Any]] = {
    "mini-bert": {"learning_rate": 5e-4, "dropout_from": 0.0},
}


def pretrain_backbone(
    backbone: str, texts: Sequence[str], folder: Path, *, tokens: int, seed: int, device: str
) -> float:
    """Pre-train a backbone further on texts, or go on with it in that folder; return the seconds
    that a token took.

    Raises:
        UsageError: The backbone has no masked-LM head, there is too little text, or pre-training is
            not installed.
    """
    corpus = folder / "texts.txt"
    if not corpus.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        files.write_text(corpus, "".join(f"{' '.join(text.split())}\n" for text in texts))
    output = _model_in(folder)
    try:
        pretrain = pc.pretrain
    except ModuleNotFoundError:
        raise UsageError("the plug-in pretrain is not installed") from None
    made = pretrain(
        corpus,
        output,
        start=backbone,
        device=device,
        resume=True,
        tokens=tokens,
        batch_tokens=BATCH_TOKENS,
        seed=seed,
        **_SETTINGS.get(backbone, {}),
    )
    speed = made.figures["tokens_per_second"]
    assert isinstance(speed, int)
    return 1 / max(1, speed)


def add_change(entry: Entry, folder: Path, name: str) -> Entry:
    """Return a model whose weights changed as those of its backbone did in the folder."""
    before = _weights(entry.recipe.backbone)
    after = _weights(str(_model_in(folder)))
    tensors = dict(entry.tensors)
    for key in tensors:
        for own, weight in tuned_weights({key: tensors[key]}).items():
            tensors[key] = weight.float() + after[own] - before[own]
    return dataclasses.replace(entry, name=name, tensors=tensors, scores=[])


def _model_in(folder: Path) -> Path:
    return folder / "backbone"


def _weights(backbone: str) -> dict[str, Any]:
    """Return the weights of a backbone by its own names."""
    encoder = loading.open_model(pc.Recipe(backbone=backbone), dtype="float32")
    return {name: weight.detach() for name, weight in encoder.backbone.model.state_dict().items()}
