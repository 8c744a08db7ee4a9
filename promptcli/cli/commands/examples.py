"""``promptcli examples``: small files to try the other commands on."""

from functools import partial
from pathlib import Path

from promptcli.cli.console import result_json, result_table
from promptcli.cli.options import Json
from promptcli.cli.signatures import command_of
from promptcli.data.demo import write_examples


@command_of(write_examples, flags={"folder": "FOLDER"})
def examples(write_examples: "partial[dict[str, str]]", json: Json = False) -> None:
    folder: Path = write_examples.keywords["folder"]
    files = {str(folder / name): content for name, content in write_examples().items()}
    if json:
        result_json(
            {"files": [{"file": file, "holds": content} for file, content in files.items()]}
        )
        return
    result_table((), list(files.items()))
