"""``promptcli rerun``: a kept result measured again and compared. Options, calls, notes; no arithmetic."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.commands.reproduce_options import DataDir, TextOptions, Vectors, open_context
from promptcli.cli.console import result, result_json
from promptcli.cli.opening import configure_libraries, data_folder, default_backbone
from promptcli.cli.options import Json, Runtime
from promptcli.errors import CheckFailedError


def rerun(
    file: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A file of results/.")],
    backbone: Annotated[str | None, typer.Option(help="Where the file's backbone is, if not under its name.")] = None,
    data_dir: DataDir = None,
    vectors: Vectors = None,
    json: Json = False,
    *,
    texts: TextOptions,
    runtime: Runtime,
) -> None:
    """Repeat a result of `reproduce` and compare every figure with the file's."""
    configure_libraries(runtime)
    from promptcli.reproducing.measuring import repeat_result
    from promptcli.reproducing.results import read_result

    before = read_result(file)
    open_on = functools.partial(
        open_context, runtime=runtime, data_dir=data_folder(data_dir), vectors=vectors, fresh=True
    )
    given = {"backbone": backbone, **texts.changes()}
    after, found = repeat_result(before, open_on, default_backbone(paper=False), **given)
    if json:
        result_json({"file": file.name, **dataclasses.asdict(found), "result": after})
    else:
        result(
            f"{before['table']}: {found.figures} figures, {len(found.changed)} changed;"
            f" largest difference {found.largest}"
        )
        for change in found.changed:
            result(f"  {change.row}, {change.column}: {change.before} -> {change.after}")
    if found.inputs or found.changed:
        other = f"other inputs: {', '.join(found.inputs)}" if found.inputs else "the inputs are the same"
        raise CheckFailedError(f"{file.name} is not repeated: {len(found.changed)} figures changed; {other}")
