"""Looking inside models, by the table of analyses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, overload

from promptcli.analysis import ANALYSES
from promptcli.analysis.anisotropy import Anisotropy
from promptcli.analysis.impact import Impact, ImpactStudy
from promptcli.analysis.mask_tokens import MaskTokens
from promptcli.analysis.sentence import Attention
from promptcli.analysis.sentence_map import SentenceMap
from promptcli.analysis.token_bias import TokenBias
from promptcli.analysis.uniformity import Uniformity
from promptcli.data.sources import fitting_sentences
from promptcli.data.tasks import STSTask, fitting_task, load_tasks, task_names
from promptcli.errors import NotFoundError, UsageError, look_up, unknown
from promptcli.evaluation.evaluate import candidates_of, open_candidates
from promptcli.evaluation.scores import Label
from promptcli.models.loading import Model, Sentences
from promptcli.settings import BARE

#: What an analysis finds of a model: see the module of its name.
Found = Anisotropy | Uniformity | TokenBias | SentenceMap | list[MaskTokens] | Impact | ImpactStudy | Attention
#: A value of a setting of an analysis, or its folder of data.
Setting = str | int | bool | Sequence[str] | Path | None


@overload
def analyze(
    name: Literal["anisotropy", "vocabulary"], model: Model = ..., on: Sentences = ..., **how: Setting
) -> Anisotropy: ...
@overload
def analyze(name: Literal["uniformity"], model: Model = ..., on: Sentences = ..., **how: Setting) -> Uniformity: ...
@overload
def analyze(name: Literal["token-bias"], model: Model = ..., on: Sentences = ..., **how: Setting) -> TokenBias: ...
@overload
def analyze(name: Literal["map"], model: Model = ..., on: Sentences = ..., **how: Setting) -> SentenceMap: ...
@overload
def analyze(
    name: Literal["mask-tokens"], model: Model = ..., on: Sentences = ..., **how: Setting
) -> list[MaskTokens]: ...
@overload
def analyze(name: Literal["impact"], model: Model = ..., on: Sentences = ..., **how: Setting) -> Impact: ...
@overload
def analyze(name: Literal["impact-tfidf"], model: Model = ..., on: Sentences = ..., **how: Setting) -> ImpactStudy: ...
@overload
def analyze(name: Literal["attention"], model: Model = ..., on: Sentences = ..., **how: Setting) -> Attention: ...
@overload
def analyze(name: str, model: Model = ..., on: Sentences = ..., **how: Setting) -> Found: ...
def analyze(
    name: str,
    model: Model = BARE.backbone,
    on: Sentences = BARE.corpus,
    **settings: Setting,
) -> Found:
    """Look inside a model.

    Args:
        name: ``anisotropy``, ``vocabulary``, ``uniformity``, ``token-bias``, ``map``, ``mask-tokens``,
            ``impact``, ``impact-tfidf``, ``attention``: a row of ``analysis.ANALYSES``, which says what each finds.
        model: An encoder, or what ``load`` takes.
        on: What is looked at: a sentence (``impact``, ``attention``); tasks or files of graded pairs
            (``uniformity``); else sentences, or what names them: ``demo``, a task, a file.
        settings: ``data_dir``, the SentEval folder of a task; and those of the analysis: ``first``, ``sample``,
            ``seed``, ``lower``, ``words`` of anisotropy, ``states`` of token-bias, ``first`` of map, ``top`` of
            mask-tokens, ``corpus`` and ``first`` of impact-tfidf, ``head`` of attention.

    Returns:
        What the analysis found: see the module of its name.

    Raises:
        UsageError: No such analysis or setting, or a model that it does not fit.
        NotFoundError: Data that are not there.

    Example:
        >>> import promptcli as pc
        >>> pc.analyze("attention", "mini", "A cat sleeps.").tokens[1]
        'a'
    """
    folder = settings.pop("data_dir", None)
    found = analyze_all(name, [model], on, data_dir=None if folder is None else str(folder), settings=settings)
    return next(iter(found.values()))


def analyze_all(
    name: str,
    models: Sequence[Model],
    on: Sentences = BARE.corpus,
    *,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    skip_unfit: bool = False,
    settings: Mapping[str, Setting] = MappingProxyType({}),
) -> dict[Label, Found]:
    """Look inside several models as ``analyze`` does; those of one model input share a forward pass.

    ``text_field`` is the column of the sentence in a file. With ``skip_unfit`` models that cannot be made on their
    backbone are named and left out.
    """
    analysis = look_up("analysis", name, ANALYSES)
    for setting in settings:
        if setting not in analysis.settings:
            raise unknown(f"setting of {name}", setting, analysis.settings)
    folder = None if data_dir is None else Path(data_dir)
    given = _data(analysis.takes, on, folder, text_field)
    chosen, corpus = dict(settings), settings.get("corpus", BARE.corpus)
    if "corpus" in analysis.settings and isinstance(corpus, str):
        chosen["corpus"] = fitting_sentences(corpus, folder)
    opened = open_candidates(candidates_of(models), skip_unfit=skip_unfit)
    results = analysis.run([encoder for _, encoder in opened], given, **chosen)
    return dict(zip((candidate.label for candidate, _ in opened), results, strict=True))


def _data(takes: str, on: Sentences, folder: Path | None, text_field: str | None) -> Any:
    """Return what an analysis takes."""
    if takes == "nothing":
        return None
    if takes == "pairs":
        return pairs_of(on, folder)
    if takes == "sentence":
        if not isinstance(on, str):
            raise UsageError(f"one sentence is looked at, and {type(on).__name__} is given; give a string")
        return on
    if takes == "texts" and isinstance(on, str):
        return [on]
    if isinstance(on, str | Path):
        return fitting_sentences(str(on), folder, text_field=text_field)
    return list(on)


def pairs_of(on: Sentences, folder: Path | None) -> list[STSTask]:
    """Return tasks of graded pairs by their names, all splits of one by ``STS-B:all``, or files of pairs."""
    given = [str(on)] if isinstance(on, str | Path) else list(on)
    names = [fitting_task(name) if name.endswith(":all") else task_names([name])[0] for name in given]
    loaded = load_tasks(folder, names)
    for label, reason in loaded.missing.items():
        raise NotFoundError(f"{label} is not there: {reason}")
    return loaded.tasks
