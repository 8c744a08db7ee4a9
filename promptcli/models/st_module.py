"""An encoder as the only module of a SentenceTransformer, for recipes that its standard modules
cannot express.
"""

from pathlib import Path
from typing import Any, Self

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import InputModule

from promptcli.backbones.model_folder import ModelFolder
from promptcli.encoder.encoder import TorchEncoder
from promptcli.models.foreign_formats import read_model
from promptcli.models.loading import entry_from_encoder, open_torch_encoder
from promptcli.models.saving import save_encoder


class PromptcliModule(InputModule):  # type: ignore[misc]
    """Texts in, ``sentence_embedding`` (n, d) out; the encoder computes it."""

    def __init__(self, encoder: TorchEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def max_seq_length(self) -> int:
        """The length of the longest input in tokens, template included."""
        return self.encoder.max_length

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        encoder = self.encoder
        recipe = self.encoder.recipe.replace(max_length=tokens)
        self.encoder = TorchEncoder(
            recipe, encoder.backbone, encoder.tensors(), leading=encoder.leading
        )

    @property
    def tokenizer(self) -> Any:
        return self.encoder.tokenizer

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        return {"texts": [(prompt or "") + text for text in inputs]}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        features["sentence_embedding"] = self.encoder.encode(
            features.pop("texts"), convert_to_tensor=True
        )
        return features

    def get_embedding_dimension(self) -> int:
        return self.encoder.width

    def save(self, output_path: str, *args: Any, **_: Any) -> None:
        encoder = self.encoder
        path = Path(output_path)
        save_encoder(entry_from_encoder(encoder, path.name), encoder, path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub_options = {name: options[name] for name in names if name in options}
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder or ".", **hub_options)
        path = Path(folder or model_name_or_path)
        return cls(open_torch_encoder(read_model(ModelFolder(str(path), path)), dtype="stored"))


def as_sentence_transformer(encoder: TorchEncoder) -> SentenceTransformer:
    """Return a SentenceTransformer with the encoder's vectors; it needs no ``trust_remote_code``.

    Example:
        >>> import promptcli as pc
        >>> model = as_sentence_transformer(pc.load("mini"))  # doctest: +SKIP
        >>> model.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 256)
    """
    return SentenceTransformer(modules=[PromptcliModule(encoder)], device=str(encoder.device))
