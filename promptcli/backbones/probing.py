"""Do a tokenizer and a model belong together, and do they tell texts apart? Looked at once, when they are loaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.checking import json_field
from promptcli.backbones.states import Batch, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.errors import UsageError
from promptcli.storage.documents import shown

#: Words of many scripts, the same number in each text: a vocabulary that cannot distinguish them knows no language.
PROBES = (
    "cat runs 12 , кот γάτα 猫 ねこ 고양이 قطة แมว बिल्ली",
    "dog sees 37 . пёс σκύλος 犬 いぬ 개 كلب หมา कुत्ता",
)


def check_vocabulary(what: str, folder: Path, tokenizer: PieceTokenizer, rows: int) -> None:
    """Compare the tokenizer with the table of v embeddings, ``rows``, and with its folder's own files."""
    size, highest = tokenizer.size, tokenizer.highest
    if highest >= rows:
        raise UsageError(
            f"{what} has {rows} rows of embeddings, and its vocabulary goes to id {highest}"
            f" ({shown(tokenizer.text(highest))}): they are not of one model"
        )
    if size < highest + 1 and (twice := _twice(folder)) is not None:
        raise UsageError(f"the vocabulary of {what} has {shown(twice)} twice")
    if 2 * size <= rows:
        raise UsageError(
            f"{what} has {rows} rows of embeddings and only {size} tokens in its vocabulary: it is cut short, or"
            " not of one model"
        )
    texts = [tokenizer.text(token) for token in sorted(tokenizer.specials)]
    for text in _made_up(folder, [text for text in texts if not tokenizer.knows(text)]):
        raise UsageError(f"the vocabulary of {what} has no {text}, which its tokenizer needs")
    if tokenizer.mask is not None and tokenizer.mask in {*tokenizer.start, *tokenizer.end, tokenizer.unk}:
        raise UsageError(f"the mask token of {what} is {shown(tokenizer.mask_text)}, which means something else")


def _twice(folder: Path) -> str | None:
    """Return an item that the vocabulary file has twice, of the file that is read."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            found.append(_repeated([key for key, _ in pairs]) or "")
        return dict(pairs)

    if (folder / "tokenizer.json").is_file():
        content = json.loads((folder / "tokenizer.json").read_bytes(), object_pairs_hook=note)
        items = content["model"]["vocab"]
        return _repeated([piece for piece, _ in items]) if isinstance(items, list) else next(iter(found), None)
    if (folder / "vocab.txt").is_file():
        return _repeated((folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return None


def _repeated(items: Sequence[str]) -> str | None:
    seen: set[str] = set()
    return next((item for item in items if item in seen or seen.add(item)), None)  # type: ignore[func-returns-value]


def _made_up(folder: Path, added: Sequence[str]) -> list[str]:
    """Return those of the added special tokens that no file of the folder has: the library has made them up."""
    names = [name for name in ("tokenizer.json", "vocab.txt", "vocab.json") if (folder / name).is_file()]
    if not names or not added:
        return []  # SentencePiece alone: its families have their own special tokens
    paths = [folder / name for name in (*names, "added_tokens.json")]
    content = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    content += json.dumps(json_field(folder / "tokenizer_config.json", "added_tokens_decoder"), ensure_ascii=False)
    return [text for text in added if json.dumps(text, ensure_ascii=False) not in content]


def check_probe(what: str, backbone: Backbone) -> None:
    """Compute two different texts; refuse a backbone that does not tell them apart."""
    tokenizer = backbone.tokenizer
    first, second = (dict.fromkeys(ids) for ids in tokenizer.encode(PROBES))
    specials = tokenizer.specials
    pair = [
        next((token for token in ids if token not in other and token not in specials), None)
        for ids, other in ((first, second), (second, first))
    ]
    if None in pair:
        raise UsageError(f"the vocabulary of {what} has no word of any script: different texts look the same to it")
    ids = torch.tensor([[*tokenizer.start, token, *tokenizer.end] for token in pair], device=backbone.device)
    batch = Batch(ids, torch.full((2,), ids.size(1), device=backbone.device))
    with torch.inference_mode():
        states = backbone.run(batch, Needs(layers=frozenset({backbone.n_layers}))).layers[backbone.n_layers].mean(1)
    if not torch.isfinite(states).all():
        raise UsageError(f"{what} computes vectors that are not finite: its weights are broken")
    if (states[0] - states[1]).abs().max() <= 1e-6 * states.abs().max():
        raise UsageError(f"{what} computes the same vector for different texts: its weights are broken")
