"""Training methods: one paper a file, and this table. Pure data; a new method is a file and a line here."""

from promptcli.errors import UsageError, unknown
from promptcli.training.methods import dcpcse, optiprompt, promptbert, simcse
from promptcli.training.methods.method import Method

#: Name -> unsupervised, supervised (None where the papers have none).
METHODS: dict[str, tuple[Method, Method | None]] = {
    "promptbert": (promptbert.UNSUPERVISED, promptbert.SUPERVISED),
    "dcpcse": (dcpcse.UNSUPERVISED, dcpcse.SUPERVISED),
    "optiprompt": (optiprompt.OPTIPROMPT, None),
    "scpcse": (optiprompt.SCPCSE, None),
    "simcse": (simcse.UNSUPERVISED, simcse.SUPERVISED),
}


def find_method(name: str, *, supervised: bool) -> Method:
    """Return a method.

    Raises:
        UsageError: No such method, or it is unsupervised only.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    unsupervised, other = METHODS[name]
    if not supervised:
        return unsupervised
    if other is None:
        can = ", ".join(known for known, (_, variant) in METHODS.items() if variant is not None)
        raise UsageError(f"method {name!r} has no supervised form; these have: {can}")
    return other
