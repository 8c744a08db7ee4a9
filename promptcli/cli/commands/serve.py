"""``promptcli serve``: models and indexes over HTTP, with a page to look at them."""

import os
from functools import partial

from promptcli.cli.options import RUNTIME
from promptcli.cli.signatures import Flag, command_of
from promptcli.serving import serve as serving

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"


@command_of(serving.serve, flags={"models": "[MODEL]...", "indexes": Flag("--index", metavar="DIR"), "key": None})
def serve(serve: "partial[None]") -> None:
    serve(key=os.environ.get(KEY) or None, threads=RUNTIME.get().threads)
