"""The data sets of STS tasks and the papers' training files, from the Hugging Face hub or its local
cache.

`datasets` is imported only here, and only when a data set is read, because the import is slow.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.data.senteval import GoldRow
from promptcli.errors import NotFoundError, join_lines
from promptcli.notes import is_offline, warn


@dataclass(frozen=True)
class HubSet:
    """The source of a task's pairs: a data set of the hub, or a local folder of JSONL or Parquet
    files.
    """

    path: str
    split: str = "test"
    columns: tuple[str, str, str] = ("sentence1", "sentence2", "score")
    revision: str | None = None


class UnreachableError(NotFoundError):
    """The hub did not answer."""


def read_hub_set(source: HubSet) -> list[GoldRow]:
    """Return the pairs and gold scores of a data set, from the cache or else from the network."""
    table = _load_table(source)
    missing = [column for column in source.columns if column not in table.column_names]
    if missing:
        raise NotFoundError(
            f"data set {source.path}: no column {missing[0]!r}, only"
            f" {', '.join(table.column_names)}"
        )
    return list(zip(*(table[column] for column in source.columns), strict=True))


def _load_table(source: HubSet) -> Any:
    import datasets
    from datasets.packaged_modules.cache.cache import Cache

    hint = "or give the tasks' own files: data_dir=FOLDER, with STS/ and SICK/ in it"
    with _quiet():
        if not Path(source.path).is_dir():
            with contextlib.suppress(ValueError, OSError):  # not in the cache
                name = source.path.rpartition("/")[2]
                cached = Cache(repo_id=source.path, dataset_name=name, version="auto", hash="auto")
                return cached.as_dataset(split=source.split)
            if is_offline() or datasets.config.HF_HUB_OFFLINE:
                raise UnreachableError(
                    f"data set {source.path} is not in the cache (offline); {hint}"
                )
            warn(f"fetching data set {source.path} from the Hugging Face hub")
        try:
            return datasets.load_dataset(source.path, split=source.split, revision=source.revision)
        except ConnectionError:
            raise UnreachableError(
                f"data set {source.path} cannot be reached and is not cached; {hint}"
            ) from None
        except Exception as error:  # the hub and its file formats raise many classes
            reason = join_lines(f"{type(error).__name__}: {error}")
            raise NotFoundError(
                f"data set {source.path} cannot be loaded ({reason}); {hint}"
            ) from error


def as_hub_set(
    first: Sequence[str], second: Sequence[str], gold: Sequence[float], *, split: str
) -> Any:
    """Return n pairs in the form of a hub data set with one split."""
    import datasets

    columns = {"sentence1": list(first), "sentence2": list(second), "score": list(gold)}
    return datasets.DatasetDict({split: datasets.Dataset.from_dict(columns)})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep `datasets` and the hub client from printing in the block."""
    import datasets

    with contextlib.ExitStack() as after:
        for logger in (logging.getLogger(name) for name in ("huggingface_hub", "datasets")):
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not datasets.are_progress_bars_disabled():
            after.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        yield


#: The data set of SimCSE's training files.
TRAINING_FILES = "princeton-nlp/datasets-for-simcse"
#: Name of a training file -> its file in that data set.
FILE_OF_SET: Mapping[str, str] = {
    "wiki1m_for_simcse": "wiki1m_for_simcse.txt",
    "nli_for_simcse": "nli_for_simcse.csv",
}


def hub_file(name: str) -> Path:
    """Return the path of a training file, which is fetched unless it is in the cache; ``name`` is a
    key of ``FILE_OF_SET``.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    file = FILE_OF_SET[name]
    hint = "or give the path of the file in place of its name"
    try:
        return Path(
            hf_hub_download(TRAINING_FILES, file, repo_type="dataset", local_files_only=True)
        )
    except LocalEntryNotFoundError:
        if is_offline():
            raise NotFoundError(
                f"{file} of {TRAINING_FILES} is not in the cache (offline); {hint}"
            ) from None
    warn(f"fetching {file} of {TRAINING_FILES} from the hub")
    try:
        return Path(hf_hub_download(TRAINING_FILES, file, repo_type="dataset"))
    except (HfHubHTTPError, OSError) as error:
        reason = join_lines(error, 120)
        raise NotFoundError(
            f"{file} of {TRAINING_FILES} cannot be fetched ({reason}); {hint}"
        ) from None
