"""Commands with their options in their own signatures: the help is what the library's docstrings
say.
"""

import pytest

import promptcli as pc
from promptcli.cli.app import command
from promptcli.cli.signatures import help_of, is_expanded, prose

#: Command -> the functions of the library that it calls, and the options that are another thing on
#: the command line, with a help of their own.
WRITTEN_OUT = {
    "train": ([pc.train], {"method", "name", "resume"}),
}


def load(name):
    """The command with its options, and the function behind it."""
    loaded = command().commands[name]
    module = loaded.load()
    return loaded, getattr(module, loaded.target.partition(".")[2])


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_option_s_help_is_the_sentence_of_the_library(name):
    functions, of_its_own = WRITTEN_OUT[name]
    loaded, function = load(name)
    assert not is_expanded(function)
    said = {}
    for called in reversed(functions):  # the first one's sentences are in force
        said |= help_of(called)
    options = {option.name: option.help for option in loaded.params}
    shared = options.keys() & said.keys() - of_its_own
    assert len(shared) >= 3
    assert {option: options[option] for option in shared} == {
        option: said[option] for option in shared
    }


@pytest.mark.parametrize("name", ["train"])
def test_a_command_s_help_begins_as_the_docstring_of_the_library(name):
    functions, _ = WRITTEN_OUT[name]
    loaded, _ = load(name)
    assert loaded.help == prose(functions[0])
