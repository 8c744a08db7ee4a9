"""How a user names a file: ``FILE``, ``FILE:COLUMN,...``; and its extension."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from promptcli.errors import UsageError
from promptcli.notes import keyword
from promptcli.retrieval.reading.input_files import COMPRESSED, check_file, is_remote

#: Extensions of Markdown, and of texts that are prose whatever their first lines look like.
MARKDOWN = (".md", ".markdown", ".mdx", ".rmd", ".qmd")
PROSE = (*MARKDOWN, ".rst")


_WORKBOOK = re.compile(r"(?s)(.*?\.xlsx):(.+)", re.IGNORECASE)


def split_columns(word: str) -> tuple[str, tuple[str, ...]]:
    """Return the file and the columns of ``FILE`` or ``FILE:first,second,score``.

    In ``FILE.xlsx:SHEET:first,second`` the sheet comes before the first column, with its colon.

    Example:
        >>> split_columns("pairs.csv:question,answer,gold")[1]
        ('question', 'answer', 'gold')
    """
    workbook = _WORKBOOK.match(word)
    if workbook is not None and os.path.exists(workbook[1]) and not os.path.exists(word):
        sheet, colon, listed = workbook[2].rpartition(":")
        first, *others = listed.split(",")
        return workbook[1], (f"{sheet}{colon}{first.strip()}", *map(str.strip, others))
    name, colon, listed = word.rpartition(":")
    if (
        colon
        and not os.path.exists(word)
        and (os.path.exists(name) or ("," in listed and "/" not in listed))
    ):
        return name, tuple(column.strip() for column in listed.split(","))
    return word, ()


def names_file(word: str) -> bool:
    """Return whether a word of the command line is a file that exists, or ``FILE:COLUMN`` of one.

    A sentence may begin with the name of a file, too, but has a space after its colon.
    """
    if os.path.exists(word):
        return not os.path.isdir(word)
    name, columns = split_columns(word)
    return bool(columns) and ": " not in word and os.path.exists(name) and not os.path.isdir(name)


def split_text_column(words: Sequence[str], text_field: str | None) -> tuple[list[str], str | None]:
    """Return files, and the column of their sentences: ``FILE:COLUMN`` names it, or ``text_field``.

    Example:
        >>> split_text_column(["notes.txt"], None)
        (['notes.txt'], None)
    """
    files = list[str]()
    chosen = dict[str | None, None]()  # in order
    for word in words:
        file = word
        columns: tuple[str, ...] = ()
        if not is_remote(word):
            file, columns = split_columns(word)
        if len(columns) > 1:
            check_file(Path(file))
            raise UsageError(
                f'{word!r} names {len(columns)} columns; name that of the sentence: "{file}:'
                f'{columns[0]}"'
            )
        if columns and text_field is not None:
            raise UsageError(
                f"{word!r} names a column, and so does {keyword('text_field')}; leave one out"
            )
        files.append(file)
        chosen[columns[0] if columns else text_field] = None
    if len(chosen) > 1:
        raise UsageError(
            f"all files have one column of sentences; name it as {keyword('text_field')}"
        )
    return files, next(iter(chosen), text_field)


def extension_of(name: str | Path) -> tuple[str, str]:
    """Return the extension of a file in small letters, and the ending of a compressed one.

    Example:
        >>> extension_of("notes/Alps.TXT.gz")
        ('.txt', '.gz')
    """
    path = Path(name)
    ending = ""
    if path.suffix.lower() in COMPRESSED:
        ending = path.suffix.lower()
        path = Path(path.stem)
    return path.suffix.lower(), ending
