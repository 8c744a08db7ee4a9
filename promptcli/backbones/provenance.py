"""The origin of a backbone."""

from dataclasses import dataclass

TABLE = "table"  #: family of a table of word vectors in a folder


@dataclass(frozen=True)
class Provenance:
    """The origin of a backbone: enough to distinguish two backbones and to fetch the same one
    again.
    """

    backbone: str
    family: str
    revision: str | None
    weights_sha256: str
    tokenizer_sha256: str
