"""``promptcli serve`` and ``mcp``: models and indexes over HTTP with a page, and to agents."""

import dataclasses
import os
from typing import Annotated

import typer

from promptcli.cli import options
from promptcli.plugins.serve.job import ServeAgentsJob, ServeJob

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"


def serve(
    job: ServeJob,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as an argument; repeatable.")
    ] = None,
) -> None:
    names = [*options.words_of(job.models), *(model or ())] or ["mini"]
    dataclasses.replace(
        job,
        models=list(map(options.choice_of, names)),
        key=os.environ.get(KEY) or None,
        threads=options.RUNTIME.get().threads,
    ).run()


def mcp(job: ServeAgentsJob) -> None:
    job.run()
