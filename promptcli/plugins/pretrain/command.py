"""``promptcli pretrain``: a small BERT from plain text."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from promptcli.cli import options
from promptcli.cli.console import result, result_json
from promptcli.cli.options import Json
from promptcli.notes import note
from promptcli.plugins.pretrain.job import PLAIN, PretrainJob
from promptcli.plugins.pretrain.plan import Plan


def help_text(_: Sequence[str]) -> options.Section:
    """Return the settings, for the end of the help page."""
    return options.set_help(Plan(), "Settings by --set", leave_out=PLAIN)


def pretrain(job: PretrainJob, as_json: Json = False) -> None:
    # nearly every step has its own shape, and the matrix library would keep memory for a thousand
    # of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    words = ["promptcli", *(word for word in sys.argv[1:] if word != "--resume")]
    made = dataclasses.replace(
        job, command=" ".join(words), device=options.RUNTIME.get().device
    ).run()
    note(f"model saved in {made.folder}; try: promptcli eval --backbone {made.folder}")
    if as_json:
        result_json(made.figures)
        return
    for name, value in made.figures.items():
        result(f"{name}\t{json.dumps(value)}")
