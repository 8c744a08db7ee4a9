"""What a template search tries, as plain data. Loads nothing heavy: the command line makes its options from it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import unknown
from promptcli.settings import check_bounds, setting

#: Templates drawn from the packaged grammar where no number is given.
DRAWN = 600
#: Templates that are scored on all pairs in the end, at least.
FINALISTS = 10


@dataclass(frozen=True)
class SearchSettings:
    """What a search tries. ``modes`` in a field's metadata: the strategies that read it, where not all do."""

    mode: str | None = setting(
        None,
        "greedy: PromptBERT 4.2, relation tokens, then prefix tokens around the best of them; free: a race"
        " among the templates of a grammar or a file; demonstrations: a race among examples in front of PromptEOL's"
        " template, on a causal model. Default: greedy, with `candidates` free.",
    )
    relation: tuple[str, ...] = setting(
        (), "Greedy: a further relation, e.g. `implies`; repeatable.", modes=("greedy",)
    )
    prefix: tuple[str, ...] = setting(
        (), "Greedy: a further prefix, e.g. `The text [X]`; repeatable.", modes=("greedy",)
    )
    candidates: Path | None = setting(
        None,
        "Free: templates, one a line, or .toml as in templates/named.toml, or a [grammar] as in"
        " templates/search.toml. Default: the grammar there.",
        modes=("free",),
    )
    generate: str | None = setting(
        None,
        "Free: let a model write the candidates: mlm, the backbone's own head; t5, a T5 as in LM-BFF.",
        modes=("free",),
    )
    t5: str | None = setting(None, "`generate` t5: a T5, local folder or hub id.")
    pairs: Path | None = setting(
        None,
        "Demonstrations, `generate` t5: word<TAB>definition lines, or word<TAB>sentence that it sums up."
        " Default: 235 of our own.",
    )
    beam: int = setting(100, "`generate`: templates to keep (the paper: 500). Default: 100.", min=2)
    limit: int | None = setting(
        None,
        f"Number of candidates to draw. Default: {DRAWN} of the packaged grammar; all of `candidates`, `pairs`.",
        modes=("free", "demonstrations"),
        min=1,
    )
    top: int = setting(FINALISTS, f"Races: how many to list and to write to the file. Default: {FINALISTS}.", min=1)
    seed: int = setting(42, "Races: of the draw and of the order of the pairs. Default: 42.", min=0)

    def __post_init__(self) -> None:
        check_bounds(self)

    def replace(self, **changes: Any) -> "SearchSettings":
        """Return the settings with some of them changed."""
        names = [item.name for item in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("setting of a template search", name, names)
        return dataclasses.replace(self, **changes)
