"""Where a backbone came from."""

from dataclasses import dataclass

OWN_TOKENIZER = (  #: the backbone's own tokenizer, if tokenizer.json holds a template
    "backbone_tokenizer"
)
TABLE = "table"  #: family of a table of word vectors in a folder


@dataclass(frozen=True)
class Provenance:
    """Where a backbone came from: enough to tell two backbones apart and to fetch the same one
    again.
    """

    backbone: str
    family: str
    revision: str | None
    weights_sha256: str
    tokenizer_sha256: str
