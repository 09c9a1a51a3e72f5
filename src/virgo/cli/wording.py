"""The command line's words: mistakes in one line, and Python's spelling of options as its own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from virgo.errors import suggestion
from virgo.vocabulary import OPTIONS

#: What Python spells as an argument and the command line as a word after the method's name.
_SPELLINGS = {
    **{
        f"{name}={value!r}": f"+{word}"
        for word, option in OPTIONS.items()
        for name, value in option.items()
    },
    "estimate='analytic'": "the name without +measured",
    "signal='mean'": "the name without +rms",
    "variant='theorem'": "the name without +released",
    "virgo.methods()": "virgo methods",
    "mean_features": "--mean-features",
    **{f"{end}_column:": f"--{end}-column:" for end in ("source", "target", "weight")},
}
_CHOICES = re.compile(r"argument (.+): invalid choice: '?([^' ]+)'? \(choose from (.+)\)")


def spoken(message: str) -> str:
    """A message of the library as the command line says it.

    Args:
        message: with arguments as Python spells them.

    Returns:
        The message with the command line's words.

    >>> spoken("Use signal='rms' or estimate='measured'.")
    'Use +rms or +measured.'
    """
    for python, words in _SPELLINGS.items():
        message = message.replace(python, words)
    return message


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2.

        Args:
            message: what argparse says.
        """
        if hit := _CHOICES.fullmatch(message):
            option, word, choices = hit[1], hit[2], hit[3].replace("'", "")
            option = "command" if "|" in option else option
            message = (
                f"{option}: expected one of {choices}, got {word!r}."
                f"{suggestion(word, choices.split(', '))}"
            )
        elif not message.endswith((".", "?")):
            message += "."
        self.exit(2, f"{self.prog}: {message} See {self.prog} --help.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, with the nearest option of the command for one that it does not have.

        Args:
            args: the command line.
            namespace: to add to.

        Returns:
            The namespace.
        """
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = list(_commands(self, list(args or ())))[-1]
            known = [option for action in command._actions for option in action.option_strings]
            word = next((w for w in unknown if w.startswith("-")), unknown[0])
            near = suggestion(word.partition("=")[0], known) if word.startswith("-") else ""
            command.error(f"expected options that it has, got {' '.join(unknown)}.{near}")
        return parsed


def _commands(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[Any]:
    """The parser and, one in the other, those of the commands that were named."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            named = next((word for word in words if word in action.choices), None)
            if named is not None:
                rest = words[list(words).index(named) + 1 :]
                yield from _commands(action.choices[named], rest)


def given_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[str]:
    """The options of a command whose values are not their defaults.

    Args:
        parser: of the command.
        args: what it has parsed.

    Returns:
        Their names, such as ``--layers``.
    """
    return [
        action.option_strings[-1]
        for action in parser._actions
        if action.option_strings and getattr(args, action.dest, None) not in (action.default, None)
        if action.dest != "help"
    ]
