"""Control characters of other people's names, columns, texts and values, made visible.

One sign replaces each character, so that styles and columns keep their places.
"""

import re

#: Marks and overrides of the writing direction, which reorder the letters of a line.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS = (0x2028, 0x2029)  #: of lines and paragraphs
#: ESC, BEL, CR, LF and DEL become pictures of their names; a tab stays.
_SIGNS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) != "\t"}
_SIGNS[0x7F] = "\N{SYMBOL FOR DELETE}"
_UNSHOWN = (*range(0x80, 0xA0), *_DIRECTIONS, *_SEPARATORS)
_SIGNS |= dict.fromkeys(_UNSHOWN, "\N{REPLACEMENT CHARACTER}")
#: Control characters that JSON does not have to escape.
_IN_JSON = re.compile("[\x7f-\x9f]")


def escape_controls(text: str) -> str:
    """Return a text as one line without terminal control characters.

    Example:
        >>> escape_controls("a" + chr(27) + "[2J.txt")
        'a␛[2J.txt'
    """
    return text.translate(_SIGNS)


def escape_controls_in_json(document: str) -> str:
    """Return JSON text with its control characters escaped."""
    return _IN_JSON.sub(lambda sign: f"\\u{ord(sign[0]):04x}", document)
