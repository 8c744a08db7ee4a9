"""What SentEval's script does to raw text: the Moses tokeniser for STS, visible bytes and Treebank words for the rest.

Source: SentEval, data/downstream/get_transfer_data.bash (MR, CR, SUBJ and MPQA: `cat -v`, then the Treebank's
tokeniser). Its own output is a fixed point of all three, so a folder that the script made is left as it is.
"""

import re
from collections.abc import Sequence


def moses(sentences: Sequence[str], *, lower: bool) -> list[str]:
    """Tokenise like Moses' `tokenizer.perl -l en -no-escape`, joined by blanks, and lower-case on request.

    The text that circulates under SentEval's name is a fixed point of that tokeniser: it holds ``russia ' s`` where one
    pass makes ``russia 's`` and a second one ``russia ' s``. So two passes are made; a tokeniser that splits at
    punctuation itself, like BERT's, sees no difference.
    """
    from sacremoses import MosesTokenizer  # slow to import, and text of a folder does not need it

    tokenizer = MosesTokenizer(lang="en")
    done: dict[str, str] = {}
    for sentence in dict.fromkeys(sentences):
        once = tokenizer.tokenize(sentence, return_str=True, escape=False)
        twice = tokenizer.tokenize(once, return_str=True, escape=False)
        done[sentence] = twice.lower() if lower else twice
    return [done[sentence] for sentence in sentences]


def _shown(byte: int) -> str:
    if byte >= 0x80:
        return "M-" + _shown_low(byte - 0x80)
    return _shown_low(byte) if chr(byte) not in "\t\n" else chr(byte)


def _shown_low(byte: int) -> str:
    if byte == 0x7F:
        return "^?"
    return chr(byte) if byte >= 0x20 else "^" + chr(byte + 0x40)


_VISIBLE = {byte: _shown(byte) for byte in range(256)}


def visible(text: str) -> str:
    """Write Latin-1 text in printable ASCII as `cat -v` does: ``é`` becomes ``M-i``; tabs and line feeds stay."""
    return text.translate(_VISIBLE)


#: A double quote opens at the start, and after a blank or an opening bracket; every other one closes.
_OPENING = re.compile(r'(^|[ (\[{<])"')
#: The last full stop is split off: one inside may belong to an abbreviation.
_LAST_STOP = re.compile(r"""(?<=[^.])\.([\])}>"']*)[ \t]*$""")
_MARKS = re.compile(r"\.\.\.|--|[,;:@#$%&?!\[\](){}<>]")
_CLOSING = re.compile(r"(?<=[^'])'(?= )")
_CLITICS = re.compile(r"(?:n't|N'T|'(?:[sSmMdD]|ll|LL|re|RE|ve|VE))(?= )")
_TWO_WORDS = (
    ("[Cc]an", "not"),
    ("[Dd]'", "ye"),
    ("[Gg]im", "me"),
    ("[Gg]on", "na"),
    ("[Gg]ot", "ta"),
    ("[Ll]em", "me"),
    ("[Mm]ore", "'n"),
    ("'[Tt]", "is"),
    ("'[Tt]", "was"),
    ("[Ww]an", "na"),
)
_MERGED = [re.compile(f" ({first})({second})(?= )") for first, second in _TWO_WORDS]


def treebank(line: str) -> str:
    """Split a line into the words of the Penn Treebank, joined by blanks: ``it's "fair"`` is ``it 's `` fair ''``."""
    line = _OPENING.sub(r"\1 `` ", line)
    line = _LAST_STOP.sub(r" .\1 ", line)
    line = _MARKS.sub(r" \g<0> ", line)
    line = _CLOSING.sub(" '", " " + line.replace('"', " '' ") + " ")
    line = _CLITICS.sub(r" \g<0>", line)
    for merged in _MERGED:
        line = merged.sub(r" \1 \2", line)
    return " ".join(line.split())
