"""Rows of sentences into a vector file with its manifest, or into a stream.

Sentences are read and encoded in windows, so that an input of any length fits into memory.
"""

import functools
import importlib.metadata
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

import promptcli
from promptcli.data.input_files import STANDARD
from promptcli.data.layouts import ID, TEXT, ColumnChoice
from promptcli.data.rows import RowBatch, Rows, open_rows, read_texts, windows
from promptcli.data.vectors.formats import (
    VECTOR_FORMATS,
    EmbedReport,
    EmbedSettings,
    HashedFile,
    Sink,
    VectorManifest,
    choose_output,
    closing_sink,
    escape_name,
    format_of,
    manifest_path,
    reusable_manifest,
)
from promptcli.data.vectors.precision import (
    PRECISIONS,
    SAMPLE_ROWS,
    Floats,
    Loss,
    check_finite,
    neighbour_recall,
    quantize,
    unit,
)
from promptcli.embedding.splitting import Splitter
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.models import loading
from promptcli.models.language import note_unread
from promptcli.notes import Advance, no_progress, stage
from promptcli.storage.files import atomic_path, check_output, sha256, sync
from promptcli.storage.typed_documents import to_json

#: Sentences in a window: enough that sorting by length inside it fills every batch well.
WINDOW = 8192
#: Characters in a window, so that very long lines do not fill the memory.
WINDOW_CHARACTERS = 8 << 20


@dataclass(frozen=True)
class EmbedResult:
    """The result of ``embed`` on a file."""

    output: Path | None  #: the vector file; None: a stream
    encoder: Encoder
    report: EmbedReport
    seconds: float | None  #: None: the same call had made the file before


def embed_source(
    source: Path | BinaryIO,
    output: str | Path | BinaryIO | None,
    model: loading.Model,
    settings: EmbedSettings,
    *,
    batch_size: int | None,
    force: bool,
) -> EmbedResult:
    """Encode the rows of a file or a stream into a vector file or a stream."""
    path = source if isinstance(source, Path) else STANDARD
    target = choose_output(path, output, settings)
    earlier = None
    if target is not None and not force:
        earlier = reusable_manifest(target, path, settings)
    fields = ColumnChoice(settings.text_field, settings.id_field)
    with open_rows(source, fields, csv=settings.csv, skip_bad=settings.skip_bad) as rows:
        if target is not None:
            check_output(target, force=force or earlier is not None)
        count = rows.total()
        calibration = read_texts(path, fields, settings.csv, again=True) if path.is_file() else ()
        encoder = loading.open_encoder(model, dtype="auto", rows=count, calibration=calibration)
        if target is not None and earlier is not None:
            made_by = earlier.fingerprint, earlier.model, earlier.versions
            if made_by == (encoder.fingerprint, encoder.provenance, library_versions()):
                return EmbedResult(target, encoder, earlier.report, None)
            check_output(target, force=False)  # another encoder, or another release, made it
        start = time.perf_counter()
        if settings.split:
            rows = replace(rows, batches=Splitter(encoder).batches(rows))
            count = None
        writer = VectorWriter(encoder, settings, batch_size)
        with stage("embed", count) as advance:
            if target is not None:
                report = writer.write_file(rows, target, force=force, progress=advance)
            else:
                stream = cast(BinaryIO, output)
                with closing_sink(VECTOR_FORMATS[".jsonl"].open(stream, encoder.width)) as sink:
                    report = writer.write(rows, sink, progress=advance)
    return EmbedResult(target, encoder, report, time.perf_counter() - start)


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that determine the vectors; each look-up takes 5 ms."""
    libraries = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")
    return {"promptcli": promptcli.__version__} | {
        name: importlib.metadata.version(name) for name in libraries
    }


@dataclass(frozen=True)
class VectorWriter:
    """Encodes rows of sentences with one encoder and the settings of ``embed``, and writes the
    vectors.
    """

    encoder: Encoder
    settings: EmbedSettings = field(default_factory=EmbedSettings)
    batch_size: int | None = None  #: most sentences in a batch; None: by a budget of tokens

    def write_file(
        self, source: Rows, target: Path, *, force: bool = True, progress: Advance = no_progress
    ) -> EmbedReport:
        """Write the vectors of ``source`` to a vector file with a manifest.

        Without ``force`` it is an error if the vector file appears during the work.
        """
        encoder = self.encoder
        manifest_file = manifest_path(target)
        with (
            atomic_path(manifest_file) as new_manifest,
            atomic_path(target, replace=force) as new_target,
        ):
            with (
                new_target.open("xb") as file,
                closing_sink(format_of(target).open(file, encoder.width)) as sink,
            ):
                report = self.write(source, sink, progress=progress)
            manifest = VectorManifest(
                dim=encoder.width,
                settings=self.settings,
                recipe=encoder.recipe.to_dict(),
                fingerprint=encoder.fingerprint,
                model=encoder.provenance,
                name=encoder.name,
                prompts=encoder.leading,
                versions=library_versions(),
                report=report,
                input=HashedFile(escape_name(source.name), source.sha256()),
                output=HashedFile(escape_name(target.name), sha256(new_target)),
            )
            new_manifest.write_text(to_json(manifest), encoding="utf-8")
            # a failing disk raises here, and the old file keeps its manifest
            sync(new_target)
            sync(new_manifest)
            if force:
                manifest_file.unlink(missing_ok=True)  # it does not describe the new file
        return report

    def write(
        self,
        batches: Iterable[RowBatch],
        sink: Sink,
        *,
        first: int = 0,
        progress: Advance = no_progress,
    ) -> EmbedReport:
        """Write the vectors of batches of sentences to a sink, window by window.

        ``first`` is the number of their first row in the input. ``progress`` is called with the
        number of new sentences.
        """
        rows = zero = truncated = 0
        blank_rows = list[list[int]]()
        quantizer = Quantizer(self.settings.precision)
        pending = deque[RowBatch]()  # windows that the encoder has read and not returned

        def texts() -> Iterator[list[str]]:
            for number, batch in enumerate(windows(batches, WINDOW, WINDOW_CHARACTERS)):
                if first == number == 0:
                    note_unread(self.encoder, batch[TEXT])
                pending.append(batch)
                yield list(batch[TEXT])

        for encoded in self.encoder.encode_windows(
            texts(), progress=progress, batch_size=self.batch_size
        ):
            batch = pending.popleft()
            check_finite(encoded.vectors, batch[ID], "row")
            vectors = unit(encoded.vectors) if self.settings.normalize else encoded.vectors
            sink.write(batch, quantizer.quantize(vectors))
            blank = np.array([not text.strip() for text in batch[TEXT]])
            for row in np.flatnonzero(blank).tolist():
                _add_row(blank_rows, rows + row)
            rows += len(blank)
            zero += int(np.count_nonzero(~encoded.vectors.any(axis=1) & ~blank))
            truncated += int(np.count_nonzero(encoded.truncated))
        ranges = None
        if PRECISIONS[self.settings.precision].needs_ranges and quantizer.ranges is not None:
            ranges = quantizer.ranges.tolist()
        blanks = sum(stop - start for start, stop in blank_rows)
        return EmbedReport(rows, blanks, zero, truncated, quantizer.loss(), ranges, blank_rows)


def _add_row(runs: list[list[int]], row: int) -> None:
    """Add a row to the runs (start, stop) of the rows before it."""
    if runs and runs[-1][1] == row:
        runs[-1][1] += 1
    else:
        runs.append([row, row + 1])


class Quantizer:
    """Quantizes windows of vectors by the ranges of the first window, and measures the loss on some
    of its rows; float32 has no loss.
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.ranges: Floats | None = None
        self._sample: Floats | None = None

    def quantize(self, vectors: Floats) -> NDArray[Any]:
        """Return one window (n, d) as the precision stores it."""
        if self.precision == "float32":
            return vectors
        quantized = quantize(vectors, self.precision, self.ranges)
        if self.ranges is None:
            self.ranges = quantized.ranges
            shuffled = np.random.default_rng(0).permutation(len(vectors))
            self._sample = vectors[np.sort(shuffled[:SAMPLE_ROWS])]
        return quantized.matrix

    def loss(self) -> Loss | None:
        """Return the loss; None for fewer than two rows."""
        if self._sample is None or len(self._sample) < 2:
            return None
        restored = quantize(self._sample, self.precision, self.ranges).restore()
        return Loss(len(restored), neighbour_recall(self._sample, restored))
