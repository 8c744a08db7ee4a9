"""Put a trained model of the registry in the place of a shipped one, its weights in float16.

    python benchmarks/ship.py NAME mini

The card, README.md, is written by hand and stays.
"""

import argparse
import dataclasses
import shutil
from pathlib import Path

import promptcli
from promptcli.models.entries import CARD, SHIPPED_MODELS, write_entry
from promptcli.models.loading import open_registry
from promptcli.storage.files import write_folder


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("shipped", choices=SHIPPED_MODELS)
    arguments = parser.parse_args()
    entry = open_registry().load(arguments.name)
    target = Path(promptcli.__file__).parent / "shipped" / arguments.shipped
    with write_folder(target) as folder:
        shutil.copyfile(target / CARD, folder / CARD)
        tensors = {name: tensor.half() for name, tensor in entry.tensors.items()}
        write_entry(folder, dataclasses.replace(entry, name=arguments.shipped, tensors=tensors))


if __name__ == "__main__":
    main()
