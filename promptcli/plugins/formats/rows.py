"""Rows of this plug-in in the table of backbone files; the readers are imported on use."""

from pathlib import Path
from typing import TYPE_CHECKING

from promptcli import errors

if TYPE_CHECKING:
    from promptcli.backbones.word_tables import WordTable


def open_gguf(name: str) -> Path:
    """Return the folder of a converted GGUF file."""
    errors.require_libraries("gguf", extra="gguf")
    from promptcli.plugins.formats.gguf_files import folder_of

    return folder_of(name)


def read_glove(name: str) -> "WordTable":
    """Return the word vectors of ``glove:FILE``."""
    from promptcli.plugins.formats.word_files import read_words

    return read_words(name)
