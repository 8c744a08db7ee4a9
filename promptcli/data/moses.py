"""The Moses step that SentEval does to raw text. Knows nothing of tasks."""

from collections.abc import Sequence

from sacremoses import MosesTokenizer


def tokenize(sentences: Sequence[str], *, lower: bool) -> list[str]:
    """Tokenise like Moses' `tokenizer.perl -l en -no-escape`, joined by blanks, and lower-case on request.

    Source: SentEval, data/downstream/get_transfer_data.bash. The text that goes round under SentEval's name is a fixed
    point of that tokeniser: it holds ``russia ' s`` where one pass makes ``russia 's`` and a second one ``russia ' s``.
    So two passes are made; a tokeniser that splits at punctuation itself, like BERT's, sees no difference.
    """
    tokenizer = MosesTokenizer(lang="en")
    done: dict[str, str] = {}
    for sentence in dict.fromkeys(sentences):
        once = tokenizer.tokenize(sentence, return_str=True, escape=False)
        twice = tokenizer.tokenize(once, return_str=True, escape=False)
        done[sentence] = twice.lower() if lower else twice
    return [done[sentence] for sentence in sentences]
