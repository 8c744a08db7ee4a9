"""transformers, imported at first need and kept silent: its import takes longer than many a command."""

from logging import CRITICAL
from typing import Any


def transformers() -> Any:
    """Return the library; its warnings and bars are off, whoever had it imported before."""
    import transformers as library
    from transformers.utils import logging

    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return library
