"""``virgo completion``: a script that completes commands, options and choices in bash or zsh.

The words are taken from the parsers once, when the script is printed: asking the program at every
key press, as argcomplete does, would import PyTorch each time.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from virgo.cli.arguments import Subparsers, add_command

_SCRIPT = """\
_virgo() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local key="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$key $word" in
            {commands}) key="$key $word" ;;
        esac
    done
    case "$key $before" in
{choices}
        *) case "$key" in
{options}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _virgo virgo
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion(args: argparse.Namespace) -> int:
    """Print the script."""
    print((_ZSH if args.shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """The script, which zsh reads as well."""
    from virgo.cli import COMMANDS, parser

    parsers: dict[str, argparse.ArgumentParser] = {}
    for name in COMMANDS:
        parsers |= dict(_nested(parser([name]), ""))
    words = {"": [*COMMANDS, "--help", "--version"]}
    choices: dict[str, list[str]] = {}
    for key, command in parsers.items():
        actions = [a for a in command._actions if a.help != argparse.SUPPRESS]
        words[key] = [option for action in actions for option in action.option_strings]
        for action in actions:
            known = [str(choice) for choice in action.choices or ()]
            if not action.option_strings:
                words[key] += known
            else:
                choices |= {f"{key} {o}": known for o in action.option_strings if known}
    return _SCRIPT.format(
        commands="|".join(shlex.quote(key) for key in parsers),
        choices=_cases(choices),
        options=_cases(words),
    )


def _nested(
    parser: argparse.ArgumentParser, key: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command below a parser, by its words, each with a space before it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{key} {name}", command
                yield from _nested(command, f"{key} {name}")


def _cases(words: dict[str, list[str]]) -> str:
    return "\n".join(
        f"        {shlex.quote(key)}) words={shlex.quote(' '.join(values))} ;;"
        for key, values in words.items()
    )


def add_to(commands: Subparsers) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "completion",
        completion,
        "Prints a script for a shell. Save it where the shell looks for completions; it takes "
        "seconds to make, so that a start-up file should not call it.",
        "virgo completion bash > ~/.local/share/bash-completion/completions/virgo",
        "virgo completion zsh > ~/.virgo-completion.zsh  # and source it in ~/.zshrc",
    )
    command.add_argument("shell", choices=("bash", "zsh"))
