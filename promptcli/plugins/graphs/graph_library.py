"""What a library needs to compute an encoder as a graph; it imports nothing heavy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.plugins.graphs.graph_files import RunGraph


@dataclass(frozen=True)
class GraphLibrary:
    """A library that computes an encoder as a graph, on a CPU."""

    name: str
    libraries: tuple[str, ...]  #: the modules it imports
    dtypes: tuple[str, ...]  #: its precisions, the one for ``stored`` first
    #: fills a folder, given sentences like the user's
    write: "Callable[[TorchEncoder, Path, Sequence[str]], object]"
    load: "Callable[[Path, str], RunGraph]"
