"""What to cite for a trained model: the paper of its method in papers.bib, and promptcli."""

from pathlib import Path

import promptcli

#: Method -> key of its paper, beside those whose key ends with the method's name; ``distill`` has
#: none.
_KEYS = {
    "scpcse": "dcpcse",
    "sbert-regression": "sbert",
    "cse-sfp": "csesfp",
    "pcc-tuning": "pcctuning",
}
_PROGRAM = f"""@software{{promptcli,
  title = {{promptcli}},
  author = {{{{The promptcli authors}}}},
  version = {{{promptcli.__version__}}},
  license = {{Apache-2.0}},
}}"""


def bibtex(method: str) -> str:
    """Return the entries to cite for a model trained by a method: its paper's, and promptcli's."""
    papers = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8").strip()
    key = f"-{_KEYS.get(method, method)},"
    entries = [entry for entry in papers.split("\n\n") if entry.partition("\n")[0].endswith(key)]
    return "\n\n".join([*entries, _PROGRAM])
