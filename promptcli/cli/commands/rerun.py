"""``promptcli rerun``: a kept result measured again and compared. Options, calls, notes; no arithmetic."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.commands.reproduce_options import Corpus, DataDir, Json, Triplets, open_context
from promptcli.cli.console import result, result_json
from promptcli.cli.opening import configure_libraries, data_folder, default_backbone
from promptcli.cli.options import Runtime
from promptcli.errors import CheckFailedError


def rerun(
    file: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A file of results/.", show_default=False)],
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Where the file's backbone is, if not under its name.")
    ] = None,
    data_dir: DataDir = None,
    corpus: Corpus = None,
    triplets: Triplets = None,
    json: Json = False,
    *,
    runtime: Runtime,
) -> None:
    """Repeat a result of `reproduce` and compare every figure with the file's."""
    configure_libraries(runtime)
    from promptcli.reproducing.measuring import measure_table
    from promptcli.reproducing.published import find_tables
    from promptcli.reproducing.results import compare_results, read_result

    before = read_result(file)
    name = backbone or (before["backbone"] or {}).get("name") or default_backbone(paper=False)
    fitted_on = corpus or (before["corpus"] or {}).get("name") or "demo"
    context = open_context(
        name,
        data_folder(data_dir),
        fitted_on,
        runtime,
        fresh=True,
        seeds=before["seeds"].get("training", ()),
        triplets=triplets or (before.get("triplets") or {}).get("name"),
    )
    after = measure_table(find_tables([before["table"]])[0], context)
    found = compare_results(before, after)
    if json:
        result_json({"file": file.name, **found.to_dict(), "result": after})
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
