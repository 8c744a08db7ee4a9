"""``promptcli examples``: small files to try the other commands on."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import note, result_json, result_table
from promptcli.cli.options import Force, Json

#: What to type next, on these files.
_NEXT = (
    "promptcli embed sentences.txt; promptcli eval --task pairs.tsv; promptcli index build sentences.txt -o my-index"
)


def examples(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to; made if it is not there.")] = Path(),
    force: Force = False,
    json: Json = False,
) -> None:
    """Write small example files, for the commands of the README: sentences, a table, graded pairs, triplets."""
    from promptcli.data.demo import write_examples
    from promptcli.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{str(folder)!r} is a file; give a folder, or none for this one") from None
    written = {str(folder / name): about for name, about in write_examples(folder, force=force).items()}
    if json:
        result_json({"files": [{"file": file, "holds": about} for file, about in written.items()]})
        return
    result_table((), list(written.items()))
    where = "" if folder == Path() else f"cd {folder}; "
    note(f"try: {where}{_NEXT}")
