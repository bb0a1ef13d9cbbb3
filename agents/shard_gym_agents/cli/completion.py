"""Print a script that lets a shell complete commands, options, and names of suites, agents, simulators and machines.

Names are those that are there when the script is made; files complete as always."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import shard_gym_agents
from shard_gym import simulators
from shard_gym.flexshard.network import NETWORKS
from shard_gym.records import commands
from shard_gym.task import suites
from shard_gym.task.machines import MACHINES
from shard_gym.task.task import RESIDENCES
from shard_gym_agents.cli.index import COMMANDS

EXAMPLES = (
    'eval "$(shard-gym completion bash)"    # in ~/.bashrc',
    'eval "$(shard-gym completion zsh)"     # in ~/.zshrc, after compinit',
    "shard-gym completion fish | source     # in ~/.config/fish/config.fish",
)
NAMES: dict[str, Callable[[], Sequence[str]]] = {  # what an option may be, by the name of its value
    "suite": lambda: list(suites.SUITES),
    "agent": shard_gym_agents.names,
    "agents": shard_gym_agents.names,
    "simulator": lambda: list(simulators.registered()),
    "hardware": lambda: list(MACHINES),
    "split": lambda: suites.SPLITS,
    "residences": lambda: RESIDENCES,
    "network": lambda: list(NETWORKS),
}
BASH = r"""# completion of shard-gym, made by `shard-gym completion`
_shard_gym() {
  [ -n "$ZSH_VERSION" ] && emulate -L ksh
  local line="${COMP_LINE:0:$COMP_POINT}" prefix='' options='' values='' words word before command
  set -f; words=($line); set +f
  case "$line" in *' ') words+=('');; esac
  word="${words[${#words[@]}-1]}" before="${words[${#words[@]}-2]}" command="${words[1]}"
  case "$word" in --*=*) before="${word%%=*}" word="${word#*=}";; esac
  if [ "${#words[@]}" -le 2 ]; then
    options='@COMMANDS@'
  else
    case "$command ${words[2]}" in @PAIRS@) [ "${#words[@]}" -gt 3 ] && command="$command ${words[2]}";; esac
    case "$command $before" in
@VALUES@
      @OTHERS@) return;;
    esac
    case "$command" in
@OPTIONS@
    esac
    if [ -n "$values" ]; then options="$values"; case "$word" in *,*) prefix="${word%,*},";; esac
    elif [ "${word#-}" = "$word" ]; then
      case "$command" in
@WORDS@
        @FILES@) return;;
      esac
    fi
  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$options" -- "${word#"$prefix"}"))
  case "$word$COMP_WORDBREAKS" in *:*:*) COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}");; esac
}
complete -o default -F _shard_gym shard-gym
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion(options: argparse.Namespace) -> None:
    """Print the script."""
    script = {"bash": bash, "zsh": lambda: ZSH + bash(), "fish": lambda: "\n".join(_fish())}[options.shell]().rstrip()
    commands.answer(options, "completion/1", lambda: {"shell": options.shell, "script": script}, lambda: script)


def values(action: argparse.Action) -> list[str]:
    """Words that an option or a place in a command line may hold; none where that is a file, a number or any text."""
    if action.choices:
        return list(map(str, action.choices))
    of_users = action.metavar == "MODULE:CLASS"
    return list(NAMES[action.dest]()) if action.dest in NAMES and not of_users else []


def bash() -> str:
    """The script of bash; also of zsh, which can be told to read it."""
    parsers = {name: command.parser()._actions for name, command in COMMANDS.items()}
    by_values: dict[str, list[str]] = {}
    others: list[str] = []
    files: list[str] = []
    words = _words()
    for name, actions in parsers.items():
        for action in actions:
            if action.option_strings and action.nargs != 0:
                which = [f'"{name} {option}"' for option in action.option_strings]
                found = " ".join(values(action))
                (by_values.setdefault(found, []) if found else others).extend(which)
            elif not action.option_strings and name not in words:
                words |= {name: " ".join(values(action))} if values(action) else {}
                files += [] if values(action) else [f'"{name}"']
    options = {name: " ".join(text for action in of for text in action.option_strings) for name, of in parsers.items()}
    filled = {
        "COMMANDS": " ".join([*_first(), "--help", "--version"]),
        "PAIRS": "|".join(f'"{name}"' for name in COMMANDS if " " in name),
        "VALUES": "\n".join(f"      {'|'.join(which)}) values='{found}';;" for found, which in by_values.items()),
        "OTHERS": "|".join(others),
        "OPTIONS": "\n".join(f"""      "{name}") options='{told}';;""" for name, told in options.items()),
        "WORDS": "\n".join(f"        {name}) options='{told}';;" for name, told in words.items()),
        "FILES": "|".join(files),
    }
    script = BASH
    for mark, text in filled.items():
        script = script.replace(f"@{mark}@", text)
    return script


def _first() -> list[str]:
    """First words of commands."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))


def _words() -> dict[str, str]:
    """Second words, by the first."""
    found: dict[str, list[str]] = {}
    for first, _, second in (name.partition(" ") for name in COMMANDS):
        if second:
            found.setdefault(first, []).append(second)
    return {first: " ".join(seconds) for first, seconds in found.items()}


def _fish() -> Iterator[str]:
    """Lines of fish's script."""
    about = {name.partition(" ")[0]: command.about for name, command in reversed(COMMANDS.items())}
    for first in _first():
        yield f"complete -c shard-gym -f -n __fish_use_subcommand -a {first} -d '{_quoted(about[first])}'"
    for first, seconds in _words().items():
        yield f"complete -c shard-gym -f -n '__fish_seen_subcommand_from {first}' -a '{seconds}'"
    for name, command in COMMANDS.items():
        when = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        when += f"; and not __fish_seen_subcommand_from {_words()[name]}" if name in _words() else ""
        for action in command.parser()._actions:
            found, takes = " ".join(values(action)), action.nargs != 0
            given = f"-x -a '{found}'" if found else "-r -F" if takes else ""
            told = _quoted(action.help or "")
            for option in (text for text in action.option_strings if text.startswith("--")):
                yield f"complete -c shard-gym -n '{when}' -l {option[2:]} {given} -d '{told}'"
            if found and not action.option_strings:
                yield f"complete -c shard-gym -f -n '{when}' -a '{found}'"


def _quoted(text: str) -> str:
    return text.partition(";")[0].replace("\\", "").replace("'", "\\'").replace("%%", "%")


def parser() -> commands.Parser:
    """Options of `completion`."""
    made = commands.parser("shard-gym completion", __doc__, examples=EXAMPLES, answer="the script")
    made.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script is printed: bash, zsh or fish")
    made.set_defaults(run=completion)
    return made
