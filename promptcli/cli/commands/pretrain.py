"""``promptcli pretrain``: a small BERT from plain text."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from promptcli import pretraining as library
from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import RUNTIME, Json, Section, SettingOptions, set_help
from promptcli.cli.signatures import Flag, command_of
from promptcli.pretraining.plan import Plan

if TYPE_CHECKING:
    from promptcli.pretraining import Pretrained

#: Settings that have their own options.
_OWN = (
    "layers",
    "width",
    "heads",
    "positions",
    "vocab_size",
    "objective",
    "tokens",
    "batch_tokens",
    "learning_rate",
    "seed",
)


def help_text(_: Sequence[str]) -> Section:
    """Return the settings, for the end of the help page."""
    return set_help(Plan(), "Settings by --set", leave_out=_OWN)


@command_of(
    library.pretrain,
    flags={
        "files": Flag("FILES...", type=list[str]),
        "start": Flag("--from", metavar="MODEL", type=str),
        "command": None,
        "settings": SettingOptions(Plan, panel="Run", defaults=True, only=_OWN),
    },
)
def pretrain(pretrain: "partial[Pretrained]", as_json: Json = False) -> None:
    # nearly every step has its own shape, and the matrix library would keep memory for a thousand
    # of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    words = ["promptcli", *(word for word in sys.argv[1:] if word != "--resume")]
    made = pretrain(command=" ".join(words), device=RUNTIME.get().device)
    note(f"model saved in {made.folder}; try: promptcli eval --backbone {made.folder}")
    if as_json:
        result_json(made.figures)
        return
    for name, value in made.figures.items():
        result(f"{name}\t{json.dumps(value)}")
