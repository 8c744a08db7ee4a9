"""Negation of English sentences by a list of words, without a parser (after SNCSE)."""

import re

#: Forms of be, have and do, and modals: "not" goes after the first of them.
_AUXILIARIES = frozenset(
    "am is are was were be have has had do does did"
    " can could will would shall should may might must".split()
)
#: Contractions from which more than "n't" is removed.
_IRREGULAR = {"can't": "can", "won't": "will", "shan't": "shall", "cannot": "can"}
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][tT])?")


def negate(sentence: str) -> str:
    """Return the negation of an English sentence.

    The first "not" is removed, also from a contraction. If there is none, "not" is put behind the
    first form of be, have or do, or the first modal. Any other sentence gets "Not" in front.
    """
    words = list(_WORD.finditer(sentence))
    for word in words:
        before, after = sentence[: word.start()], sentence[word.end() :]
        spelled = word[0].lower().replace("\u2019", "'")
        if spelled == "not":
            return before + after.lstrip() if before else after.lstrip()
        if spelled in _IRREGULAR:
            affirmed = _IRREGULAR[spelled]
            if word[0].isupper():
                affirmed = affirmed.upper()
            elif word[0][0].isupper():
                affirmed = affirmed.capitalize()
            return before + affirmed + after
        if spelled == "n't":  # a word by itself in tokenised texts
            return before + after.lstrip()
        if spelled.endswith("n't"):
            return before + word[0][:-3] + after
    for word in words:
        if word[0].lower() in _AUXILIARIES:
            return f"{sentence[: word.end()]} not{sentence[word.end() :]}"
    return f"Not {sentence}"
