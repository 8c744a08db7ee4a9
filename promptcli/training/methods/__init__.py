"""Training methods, one paper per file, and the table of all methods.

Pure data; a new method is a file, its import and a row here.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, get_origin, get_type_hints

from promptcli.errors import UsageError, look_up
from promptcli.extensions import Table
from promptcli.training.methods import (
    consert,
    cotbert,
    csesfp,
    dcpcse,
    defsent,
    denosent,
    distill,
    isbert,
    optiprompt,
    pcc_tuning,
    promcse,
    promptbert,
    prompteol,
    rankcse,
    sbert,
    simcse,
    sncse,
)
from promptcli.training.methods.method import Method

#: Name -> unsupervised, supervised; None if the paper has no such form.
METHODS: Table[tuple[Method | None, Method | None]] = Table(
    "methods",
    {
        "promptbert": (promptbert.UNSUPERVISED, promptbert.SUPERVISED),
        "dcpcse": (dcpcse.UNSUPERVISED, dcpcse.SUPERVISED),
        "promcse": (promcse.UNSUPERVISED, promcse.SUPERVISED),
        "sncse": (sncse.SNCSE, sncse.SNCSE),
        "optiprompt": (optiprompt.OPTIPROMPT, optiprompt.SUPERVISED),
        "scpcse": (optiprompt.SCPCSE, None),
        "simcse": (simcse.UNSUPERVISED, simcse.SUPERVISED),
        "prompteol": (prompteol.UNSUPERVISED, prompteol.SUPERVISED),
        "sbert": (None, sbert.SBERT),
        "sbert-regression": (None, sbert.REGRESSION),
        "consert": (consert.UNSUPERVISED, consert.JOINT),
        "isbert": (isbert.ISBERT, None),
        "defsent": (None, defsent.DEFSENT),
        "cotbert": (cotbert.COTBERT, None),
        "distill": (distill.DISTILL, distill.DISTILL),
        "rankcse": (rankcse.RANKCSE, None),
        "denosent": (denosent.DENOSENT, denosent.DENOSENT),
        "cse-sfp": (csesfp.CSESFP, None),
        "pcc-tuning": (None, pcc_tuning.PCC_TUNING),
    },
)


def find_method(name: str, *, supervised: bool) -> Method:
    """Return a method by name; some methods exist only in supervised form."""
    unsupervised_method, supervised_method = look_up("method", name, METHODS)
    if unsupervised_method is not None and not supervised:
        return unsupervised_method
    if supervised_method is None:
        names = ", ".join(known for known, (_, taught) in METHODS.items() if taught)
        raise UsageError(f"method {name!r} has no supervised form; these have: {names}")
    return supervised_method


def forms() -> Iterator[Method]:
    """Yield every method in its unsupervised and supervised form."""
    yield from (form for pair in METHODS.values() for form in pair if form is not None)


def setting_types(method: str = "") -> dict[str, Any]:
    """Return the type of each setting: of one method in both forms, or of all methods without its
    name.
    """
    methods = filter(None, METHODS[method]) if method in METHODS else forms()
    types = dict[str, Any]()
    for form in methods:
        types |= get_type_hints(type(form.small))
    return {name: kind for name, kind in types.items() if get_origin(kind) is not ClassVar}
