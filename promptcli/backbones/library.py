"""transformers, imported at first need and kept silent: its import takes longer than many a command."""

import contextlib
import os
from collections.abc import Iterator
from logging import CRITICAL
from pathlib import Path
from typing import Any


def transformers() -> Any:
    """Return the library; its warnings and bars are off, whoever had it imported before."""
    import transformers as library
    from transformers.utils import logging

    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return library


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder; what its library prints on standard output, where results go, is dropped."""
    with _nothing_printed():
        return transformers().AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Keep compiled code from writing to standard output, e.g. of a token's field that it does not know."""
    try:
        kept = os.dup(1)
    except OSError:  # closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
