"""Looking inside a model, by the table of analyses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptcli.analysis import ANALYSES
from promptcli.api.encoders import load
from promptcli.api.evaluating import Model, load_named_tasks
from promptcli.data.sources import fitting_sentences
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError, unknown
from promptcli.settings import BARE


def analyze(
    name: str,
    model: Model = BARE.backbone,
    on: str | Path | Sequence[str] = BARE.corpus,
    *,
    data_dir: str | Path | None = None,
    **options: Any,
) -> Any:
    """Look inside a model.

    Args:
        name: ``anisotropy``, ``vocabulary``, ``uniformity``, ``token-bias``, ``mask-tokens``, ``impact``,
            ``impact-tfidf``, ``attention``: a row of ``analysis.ANALYSES``, which says what each finds.
        model: An encoder, or what ``load`` takes.
        on: What is looked at: a sentence (``impact``, ``attention``); tasks or files of graded pairs
            (``uniformity``); else sentences, or what names them: ``demo``, a task, a file.
        data_dir: SentEval folder of a task.
        options: Of the analysis: ``first``, ``sample``, ``lower``, ``words`` of anisotropy, ``states`` of token-bias,
            ``count`` of mask-tokens, ``corpus`` of impact-tfidf, ``head`` of attention.

    Returns:
        What the analysis found: see the module of its name.

    Raises:
        UsageError: No such analysis or option, or a model that it does not fit.
        NotFoundError: Data that are not there.

    Example:
        >>> import promptcli as pc
        >>> pc.analyze("attention", "mini", "A cat sleeps.").tokens[1]
        'a'
    """
    if name not in ANALYSES:
        raise unknown("analysis", name, ANALYSES)
    analysis, given = ANALYSES[name], _data(ANALYSES[name].takes, on, data_dir)
    encoder = model if isinstance(model, Encoder) else load(model)
    try:
        return analysis.run(encoder, given, **options)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise UsageError(f"analysis {name}: {str(error).partition(') ')[2]}; it is {analysis.help}") from None


def _data(takes: str, on: str | Path | Sequence[str], data_dir: str | Path | None) -> Any:
    if takes == "nothing":
        return None
    if takes == "pairs":
        return load_named_tasks(on, data_dir=data_dir)
    if takes == "sentence":
        if not isinstance(on, str):
            raise UsageError(f"one sentence is looked at, and {type(on).__name__} is given; give a string")
        return on
    if isinstance(on, str | Path):
        return fitting_sentences(str(on), None if data_dir is None else Path(data_dir))
    return list(on)
