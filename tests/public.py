"""The public names of promptcli and the modules that they come from, as the stub lists them."""

import re
from pathlib import Path

import promptcli

_STUB = Path(promptcli.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
PUBLIC = {
    name: f"promptcli.{module}"
    for module, name in re.findall(r"^from \.(\S+) import (\w+)", _STUB, re.MULTILINE)
}
