"""Training methods, one paper per file, and the table of all methods.

Pure data; a new method is a file, its import and a row here.
"""

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

#: Name -> its forms: unsupervised, supervised. None: no such form exists.
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
    """Return a form of a method by name; some methods exist only in supervised form."""
    unsupervised_form, supervised_form = look_up("method", name, METHODS)
    if unsupervised_form is not None and not supervised:
        return unsupervised_form
    if supervised_form is None:
        names = ", ".join(known for known, (_, form) in METHODS.items() if form is not None)
        raise UsageError(f"method {name!r} has no supervised form; these have: {names}")
    return supervised_form


def forms_of(name: str) -> list[Method]:
    """Return the forms of a method: unsupervised, supervised, or both."""
    return [form for form in METHODS[name] if form is not None]


def all_forms() -> list[Method]:
    """Return every method in its unsupervised and supervised form."""
    return [form for name in METHODS for form in forms_of(name)]


def setting_types(method: str = "") -> dict[str, Any]:
    """Return the type of each setting: of one method in both forms, or of all methods without its
    name.
    """
    types = dict[str, Any]()
    for form in forms_of(method) if method in METHODS else all_forms():
        types |= get_type_hints(type(form.mini_bert_settings))
    return {name: kind for name, kind in types.items() if get_origin(kind) is not ClassVar}
