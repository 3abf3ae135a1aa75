"""`launchhelm completion`: what a shell needs to complete verbs, options, choices and runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from launchhelm import views
from launchhelm.cli import VERBS, documents, parser_for, selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output

DESCRIPTION = """Print a script that completes verbs, options, choices and runs. bash, zsh: put
`eval "$(launchhelm completion bash)"`, or zsh, into the shell's own start file. fish: `launchhelm
completion fish > ~/.config/fish/completions/launchhelm.fish`."""

SHELLS: Final = ("bash", "zsh", "fish")

_MOST_RUNS: Final = 200
_PLAIN: Final = re.compile(r"[\w.@%+=:/-]+", re.ASCII)

_BASH: Final = """\
_launchhelm() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= words= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in %(verbs)s) verb=$word; break ;; esac
  done
  case "$verb $prev" in
%(choices)s
    *" --root") COMPREPLY=($(compgen -d -- "$cur")); return ;;
  esac
  case $verb in
    "") words="%(words)s --root --version" ;;
%(options)s
  esac
  case "$verb $cur" in
    " "*|*" -"*) ;;
    %(takers)s) words="$words $(launchhelm completion --runs 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _launchhelm launchhelm
"""
_ZSH: Final = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `completion` takes."""
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.add_argument(
        "--runs",
        action="store_true",
        help="print what may stand for RUN, newest first; the scripts ask for it",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the script, or the runs."""
    if arguments.runs:
        words = list(_runs(arguments))
    elif arguments.shell in SHELLS:
        words = (_fish() if arguments.shell == "fish" else _bash(arguments.shell)).splitlines()
    else:
        raise UsageError(f"SHELL is one of {', '.join(SHELLS)}.")
    if output.json:
        output.document({"lines": words})
    else:
        for word in words:
            output.line(word)
    return Exit.DONE


def _runs(arguments: argparse.Namespace) -> Iterator[str]:
    """Return titles of runs, and ids where a shell would have to quote the title."""
    rows = [
        documents.run_document(each)
        for root in selection.roots(arguments)
        for each in views.runs(root, problems=[])
    ]
    rows.sort(key=lambda row: row["created_at"] or 0, reverse=True)
    yield "latest"
    for row in rows[:_MOST_RUNS]:
        name = str(row["name"])
        yield name if _PLAIN.fullmatch(name) else str(row["id"])


def _actions(verb: str) -> list[argparse.Action]:
    return [each for each in parser_for(verb)._actions if each.help != argparse.SUPPRESS]


def _options(verb: str) -> list[argparse.Action]:
    return [each for each in _actions(verb) if each.option_strings]


def _takes_run(verb: str) -> bool:
    return any(not each.option_strings and each.dest == "run" for each in _actions(verb))


def _bash(shell: str) -> str:
    choices, options = [], []
    for verb in VERBS:
        flags = " ".join(flag for each in _options(verb) for flag in each.option_strings)
        places = " ".join(
            str(choice)
            for each in _actions(verb)
            if not each.option_strings
            for choice in (SHELLS if verb == "completion" else each.choices or ())
        )
        options.append(f'    {verb}) words="{" ".join(filter(None, (flags, places)))}" ;;')
        for each in _options(verb):
            if each.choices:
                seen = "|".join(f'"{verb} {flag}"' for flag in each.option_strings)
                said = " ".join(map(str, each.choices))
                reply = f'COMPREPLY=($(compgen -W "{said}" -- "$cur")); return'
                choices.append(f"    {seen}) {reply} ;;")
    script = _BASH % {
        "verbs": "|".join(VERBS),
        "words": " ".join(VERBS),
        "choices": "\n".join(choices),
        "options": "\n".join(options),
        "takers": "|".join(f'"{verb} "*' for verb in VERBS if _takes_run(verb)),
    }
    return script if shell == "bash" else _ZSH + script


def _fish() -> str:
    lines = ["complete -c launchhelm -f"]
    for verb, said in VERBS.items():
        lines.append(
            f"complete -c launchhelm -n __fish_use_subcommand -a {verb} -d {_quoted(said)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {verb}'"
        if _takes_run(verb):
            lines.append(f"complete -c launchhelm {seen} -a '(launchhelm completion --runs)'")
        for each in _options(verb):
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in each.option_strings
            )
            needs = " -r" if each.nargs != 0 else ""
            if each.choices:
                needs += f" -a {_quoted(' '.join(map(str, each.choices)))}"
            text = _quoted((each.help or "").replace("%%", "%"))
            lines.append(f"complete -c launchhelm {seen} {flags}{needs} -d {text}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
