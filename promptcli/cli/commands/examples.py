"""``promptcli examples``: small files to try the other commands on."""

from promptcli.cli.console import result_json, result_table
from promptcli.cli.options import Json
from promptcli.data.demo import ExamplesJob


def examples(job: ExamplesJob, json: Json = False) -> None:
    files = {str(job.folder / name): content for name, content in job.run().items()}
    if json:
        result_json(
            {"files": [{"file": file, "holds": content} for file, content in files.items()]}
        )
        return
    result_table((), list(files.items()))
