"""How rare cosines of a model are without an index: among random pairs of the demo sentences.

Those of the shipped encoders come with the package; those of others are counted once and kept in
the user's folder.
"""

import contextlib
import time
import weakref
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.given import check_arguments
from promptcli.data.vectors.precision import unit
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.encoder.static_encoder import StaticEncoder
from promptcli.evaluation.rarity import ROWS, Rarity, sample_rows
from promptcli.models.loading import open_encoder
from promptcli.settings import home_folder
from promptcli.storage.files import atomic_path

if TYPE_CHECKING:
    from promptcli.models.loading import Model

#: Cosines of random pairs by the fingerprints of the shipped encoders.
SHIPPED_SAMPLES = SENTENCES_FILE.parent / "rarity.npz"
#: Sentences of a model on torch that are encoded, one step after the other, as long as these take
#: no more than a second.
_STEPS = (8, 64, 512)
_SECONDS = 1.0
#: Those that were asked for in this process.
_KNOWN = weakref.WeakKeyDictionary[Encoder, Rarity]()


@check_arguments
def rarity(cosines: Sequence[float], model: "Model" = "mini") -> list[float | None]:
    """Return how many of 100 random pairs of the demo sentences each cosine (n,) exceeds, by a
    model; None if that is not known.

    The first time, a model that does not come with promptcli encodes up to 512 sentences; one that
    takes a second for 8 tells nothing.

    Args:
        cosines: Of pairs of sentences, such as ``similarity`` returns.
        model: An encoder, or what ``load`` takes.

    Example:
        >>> import promptcli as pc
        >>> pc.rarity([-1.0, 1.0], "mini-static")
        [0.0, 99.99]
    """
    return rarity_of(open_encoder(model, dtype="stored")).percents(np.asarray(cosines, np.float64))


def rarity_of(encoder: Encoder) -> Rarity:
    """Return how rare cosines of an encoder are: kept, or counted."""
    if encoder not in _KNOWN:
        _KNOWN[encoder] = _read_rarity(encoder.fingerprint) or _count_and_keep(encoder)
    return _KNOWN[encoder]


def _count_and_keep(encoder: Encoder) -> Rarity:
    """Count how rare cosines of an encoder are, and keep it for the next time."""
    counted = count_rarity(encoder)
    if counted.is_known:
        _keep(counted, encoder.fingerprint)
    return counted


def count_rarity(encoder: Encoder) -> Rarity:
    """Return how rare cosines are among random pairs of demo sentences, as many as are encoded in
    little time.
    """
    sentences = _sentences()
    if isinstance(encoder, StaticEncoder):
        return Rarity.of_rows(unit(encoder.encode(sentences)))
    began = time.monotonic()
    vectors = np.empty((0, encoder.width), np.float32)
    for stop in _STEPS:
        vectors = np.concatenate([vectors, encoder.encode(sentences[len(vectors) : stop])])
        if time.monotonic() - began > _SECONDS:
            break
    return Rarity.of_rows(unit(vectors))


def _sentences() -> list[str]:
    """Return 2,000 demo sentences, in an order that is random and the same each time."""
    lines = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    chosen = np.random.default_rng(0).permutation(sample_rows(len(lines)))
    return [lines[number] for number in chosen.tolist()]


def _read_rarity(fingerprint: str) -> Rarity | None:
    """Return the rarity of an encoder that came with the package or was counted before."""
    with np.load(SHIPPED_SAMPLES, allow_pickle=False) as shipped:
        if fingerprint in shipped:
            return Rarity(shipped[fingerprint].astype(np.float64), ROWS)
    try:
        return Rarity.read(_file_of(fingerprint))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # none, or a damaged one
        return None


def _keep(counted: Rarity, fingerprint: str) -> None:
    """Keep the rarity of an encoder for the next time, if the user's folder can be written."""
    file = _file_of(fingerprint)
    with contextlib.suppress(OSError):  # it is counted again
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            counted.write(temporary)


def _file_of(fingerprint: str) -> Path:
    return home_folder() / "cache" / "rarity" / f"{fingerprint[:32]}.npz"


def write_shipped_samples(models: Sequence[str]) -> None:
    """Write the samples of encoders that come with the package."""
    samples = {}
    for name in models:
        encoder = open_encoder(name, dtype="stored")
        counted = Rarity.of_rows(unit(encoder.encode(_sentences())))
        samples[encoder.fingerprint] = counted.cosines.astype(np.float32)
    with atomic_path(SHIPPED_SAMPLES) as temporary:
        np.savez(temporary, **samples)  # type: ignore[arg-type]
