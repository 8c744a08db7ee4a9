"""Formats of files that are backbones; the usual form, a folder, is in ``locating``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptcli.extensions import Table

#: Ending of a file of a language model, such as ``.gguf`` -> a function that takes its path and
#: returns the folder with a configuration and safetensors that it becomes.
MODEL_FILES: Table[Callable[[str], Path]] = Table("model_files", {})

#: The word before the colon and the path of a file of word vectors, as in ``glove:FILE`` -> a
#: function that takes that text and returns the file's ``WordTable``.
WORD_FILES: Table[Callable[[str], Any]] = Table("word_files", {})
