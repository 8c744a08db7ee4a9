"""What a server serves: encoders by name, and indexes by name with the encoder of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.index.vector_index import VectorIndex
from promptcli.recipe import RECIPES
from promptcli.serving.wire import RequestError


@dataclass(frozen=True)
class ServedIndex:
    """An index and the encoder of its rows."""

    name: str
    index: VectorIndex
    encoder: Encoder


@dataclass(frozen=True)
class Served:
    """What a server serves."""

    models: dict[str, Encoder]  #: by the names that requests give; the first is the default
    indexes: dict[str, ServedIndex] = field(default_factory=dict)
    normalize: bool = False  #: vectors go out with length 1
    _compared: dict[str, dict[str, Encoder]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Do what the first request would have to wait for."""
        for encoder in (*self.models.values(), *(served.encoder for served in self.indexes.values())):
            assert encoder.fingerprint and encoder.width

    def model(self, name: str | None) -> Encoder:
        """Return the encoder of that name, or the default.

        Raises:
            RequestError: 404.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            there = ", ".join(self.models)
            raise RequestError(
                404, f"model {name!r} is not served; there are: {there}", param="model", code="model_not_found"
            )
        return self.models[name]

    def searched(self, names: Sequence[str] | None) -> list[ServedIndex]:
        """Return the indexes of those names, or all; their scores can be compared.

        Raises:
            RequestError: 404 no such index; 400 indexes of different encoders.
        """
        wanted = dict.fromkeys(names or self.indexes)
        missing = [name for name in wanted if name not in self.indexes]
        if missing or not wanted:
            there = f"there are: {', '.join(self.indexes)}" if self.indexes else "none is: start with --index DIR"
            asked = f"index {missing[0]!r} is not served" if missing else "no index is served"
            raise RequestError(404, f"{asked}; {there}", param="index", code="index_not_found")
        chosen = [self.indexes[name] for name in wanted]
        first = chosen[0]
        for other in chosen[1:]:
            if other.encoder.fingerprint != first.encoder.fingerprint:
                raise RequestError(
                    400,
                    f"indexes {first.name!r} and {other.name!r} come from different encoders, whose scores cannot be"
                    " compared; search one at a time",
                    param="index",
                )
        return chosen

    def compared(self, name: str | None) -> dict[str, Encoder]:
        """Return a model, and every named recipe that its backbone can do without fitting, by name."""
        encoder = self.model(name)
        label = name or next(iter(self.models))
        if label not in self._compared:
            made = {label: encoder}
            for recipe_name, recipe in RECIPES.items():
                try:
                    made[recipe_name] = Encoder(recipe.replace(backbone=encoder.recipe.backbone), encoder.backbone, {})
                except UsageError:  # it needs fitted numbers, or what the backbone does not have
                    continue
            self._compared[label] = made
        return self._compared[label]
