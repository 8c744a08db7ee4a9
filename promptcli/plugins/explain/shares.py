"""A score as the sum of what words add to it."""

from collections.abc import Collection, Mapping

from promptcli.retrieval.ranking import Explanation

MOST = 5  #: words, or pairs of them, that are shown
#: Least part of the highest figure of a word, from which others are marked.
_LEAST = 0.2


def as_sum(name: str, shares: Mapping[str, float], marked: Collection[str]) -> Explanation:
    """Return a score as a sum; its line names the words that add most.

    Args:
        name: Of the score.
        shares: What each word adds, the highest first.
        marked: The words of the hit to mark.
    """
    terms = [f"{word} {share:.4f}" for word, share in list(shares.items())[:MOST]]
    others = list(shares.values())[MOST:]
    if others:
        terms.append(f"{len(others)} others {sum(others):.4f}")
    line = f"{name} {sum(shares.values()):.4f}"
    if terms:
        line += f" = {' + '.join(terms)}"
    figures = [{"word": word, "share": share} for word, share in shares.items()]
    return Explanation(figures, line, marked)


def highest_first(shares: Mapping[str, float]) -> dict[str, float]:
    """Return words by what they add."""
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def strong(shares: Mapping[str, float]) -> list[str]:
    """Return the words that add much, up to ``MOST``; they are sorted, the highest first."""
    least = _LEAST * max(shares.values(), default=0)
    return [word for word, share in shares.items() if share >= least > 0][:MOST]
