"""Help of every command: what it says of options, and that its examples, and those of the documentation, parse."""

import argparse
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from shard_gym_agents.cli.index import COMMANDS, GROUPS
from shard_gym_agents.cli.main import main
from shard_gym_agents.cli.train import _parser
from shard_gym_agents.learners import LEARNERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^\s*(shard-gym (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
NUMBERS = (int, float)


def named(words):
    """The command that words name, and what follows."""
    for count in (2, 1):
        if (name := " ".join(words[:count])) in COMMANDS:
            return name, words[count:]
    return None, words


def refuse_odd(parser):
    """Faults of the options of a parser."""
    for action in parser._actions:
        told, name = action.help or "", action.option_strings or action.dest
        if not told.strip():
            yield f"{name} has no help"
        if not action.option_strings or isinstance(action, argparse._HelpAction) or action.required:
            continue
        default = action.default
        numeric = (isinstance(default, NUMBERS) and not isinstance(default, bool)) or action.type in NUMBERS
        if numeric and "default" not in told:
            yield f"{name} does not tell its default"
        if numeric and not action.metavar:
            yield f"{name} does not show its unit, or what is counted"
        if isinstance(default, NUMBERS) and not isinstance(default, bool) and action.type in NUMBERS:
            shown = re.sub(r"(?<=\d),(?=\d{3})", "", told)
            if f"{default:g}" not in shown and str(default) not in shown:
                yield f"{name} tells another default than {default}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_tells_what_it_is_for_its_default_and_unit(name):
    assert not list(refuse_odd(COMMANDS[name].parser()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_parse_and_exit_codes(name):
    parser = COMMANDS[name].parser()
    told = " ".join(parser.format_help().split())
    assert parser.description and told.startswith(f"usage: shard-gym {name} ")
    assert "exit codes: 0 done" in told and " 2 " in told and " 130 " in told
    assert parser.examples
    for example in parser.examples:
        found = re.search(r"shard-gym [^|)#]*", example)
        asked, words = named(shlex.split(found[0])[1:])
        assert asked == name and COMMANDS[name].parser().parse_args(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_well(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0 and "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("learner", LEARNERS)
def test_settings_of_learners_are_told(learner):
    pytest.importorskip("torch")
    module, overrides = LEARNERS[learner]
    assert not list(refuse_odd(_parser(import_module(module), overrides)))


def test_help_needs_no_torch():
    code = (
        "import sys\n"
        "for name in ('torch', 'fbgemm_gpu', 'ray', 'pyarrow', 'matplotlib', 'highspy'): sys.modules[name] = None\n"
        "from shard_gym_agents.cli.index import COMMANDS\n"
        "from shard_gym_agents.cli.main import main\n"
        "assert all(command.parser().format_help() for command in COMMANDS.values())\n"
        "sys.exit(main(['train', 'ppo', '--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--validate-every" in done.stdout


def test_commands_that_need_torch_say_so(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("shard_gym_agents.learners.rnn")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["fit", "--data", "x.npz", "--out", "w.safetensors"]) == 2
    assert re.search(r"torch .*pip install -e \".*\[torch\]\"", capsys.readouterr().err)
    assert main(["train", "rnn", "--suite", "dlrm-10x2", "--out", "x"]) == 2
    assert capsys.readouterr().err.startswith("shard-gym train: rnn needs torch: pip install -e ")


def examples_of(page):
    """Commands that a page shows."""
    for found in LINE.finditer(page.read_text(encoding="utf-8")):
        yield found[1].replace("\\\n", " ").partition(" #")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_documentation_parse(page):
    for line in examples_of(page):
        words = shlex.split(re.split(r" [|>&] ?|;", line)[0])[1:]
        if (words and words[0].startswith("--")) or any(word in ("...", "COMMAND", "STAGE") for word in words):
            continue
        name, rest = named(words)
        assert name, line
        if name == "train":
            pytest.importorskip("torch")
            module, overrides = LEARNERS[rest[0]]
            assert _parser(import_module(module), overrides).parse_args(rest)
        elif "--help" not in rest:
            assert COMMANDS[name].parser().parse_args(rest), line


def test_the_command_alone_tells_what_there_is(capsys):
    assert main([]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) < 20 and all(group in short for group in GROUPS)
    assert main(["--help"]) == 0
    long = capsys.readouterr().out
    assert all(f"\n  {name} " in long for name in COMMANDS) and "exit codes:" in long
    assert main(["round"]) == 0
    assert "round close " in capsys.readouterr().out
