"""The settings of a template search as plain data.

Imports nothing heavy, since the command line reads it.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from promptcli.errors import unknown
from promptcli.settings import check_bounds, setting

SEARCHED = ("static", "last", "first-last")  #: the states that a head is tried on (Ditto, table 2)
DRAWN = 600  #: templates drawn from the packaged grammar by default
FINALISTS = 10  #: templates that are scored on all pairs in the end, at least
Setting = str | int | Path | None  #: a value of a setting


@dataclass(frozen=True)
class SearchSettings:
    """The candidates and how they are scored.

    ``modes`` in a field's metadata: the only strategies that read it.
    """

    mode: str | None = setting(
        None,
        "greedy: PromptBERT 4.2, relation tokens, then prefix tokens around the best of them; free:"
        " a race among the templates of a grammar or a file, or those that a T5 writes;"
        " demonstrations: a race among examples in front of PromptEOL's template, on a causal"
        " model. Default: greedy, with `candidates` or `t5` free.",
    )
    candidates: Path | None = setting(
        None,
        "Free: file of templates, one a line. Default: the packaged grammar's,"
        " templates/search.toml.",
        modes=("free",),
    )
    t5: str | None = setting(
        None,
        "Free: let a T5, local folder or hub id, write the candidates as in LM-BFF.",
        modes=("free",),
    )
    pairs: Path | None = setting(
        None,
        "Demonstrations, `t5`: word<TAB>definition lines, or word<TAB>sentence that it sums up."
        " Default: 235 shipped ones.",
    )
    beam: int = setting(100, "`t5`: templates to keep (the paper: 500).", min=2)
    limit: int | None = setting(
        None,
        f"Number of candidates to draw. Default: {DRAWN} of the packaged grammar; all of"
        " `candidates`, `pairs`.",
        modes=("free", "demonstrations"),
        min=1,
    )
    top: int = setting(FINALISTS, "Races: number of templates to list.", min=1)
    seed: int = setting(42, "Races: of the draw and of the order of the pairs.", min=0)

    def __post_init__(self) -> None:
        check_bounds(self)

    def replace(self, **changes: Setting) -> "SearchSettings":
        names = [item.name for item in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("setting of a template search", name, names)
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
