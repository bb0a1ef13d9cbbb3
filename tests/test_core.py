"""The compiled core: what it gives is what numpy gives, bit for bit, and what cannot be used is refused."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import __version__, core, simulators
from shard_gym.errors import CoreError, InfeasibleTask
from shard_gym.memory.usage import device_sums
from shard_gym.simulators.base import counted
from shard_gym.task import suites
from shard_gym_agents.cli.main import main
from shard_gym_agents.solvers.greedy import COSTS, CostGreedy, Greedy
from tests.cost_model_helpers import draw_task

ROOT = Path(__file__).parents[1]
IDS = ("learned:cpu-v1", "learned:cpu-v2", "learned:cpu-judge-v1", "roofline:rtx2080ti-x4-v1", "roofline:h100-v2")
built = pytest.mark.skipif(core.load("") is None, reason="no compiled core here")


def by_both(call):
    """Answers of a call with the compiled core, and without."""
    found = call()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "compiled", lambda: None)
        return found, call()


def assert_same(one, other):
    assert one.shape == other.shape and np.array_equal(one, other, equal_nan=True)


@built
@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(IDS), st.sampled_from([(), (1,), (3, 5), (0,), (40,)]), st.booleans())
def test_times_of_shards_are_numpys(seed, simulator_id, plans, odd):
    rng, simulator = np.random.default_rng(seed), simulators.make(simulator_id)
    task = draw_task(seed, rng.choice(["kernel", "iteration"]), speed=tuple(rng.choice([0.3, 1.0, 1.7], 8)))
    rows = simulator.embed(task)
    sums = device_sums(rows, rng.integers(-1, 8, (*plans, len(rows))), 8)
    if odd:  # sums that no tables have: still numpy's answer
        sums *= 2.0 ** rng.integers(-3, 6, (*plans, 8, 1))
        sums[rng.random(sums.shape) < 0.05] = np.nan
    c, numpy = by_both(lambda: simulator.decode(task, sums))
    for name, values in vars(c).items():
        assert (values is None) == (getattr(numpy, name) is None)
        if values is not None:
            assert_same(values, getattr(numpy, name))
    assert_same(*by_both(lambda: simulator.cost(task, sums)))


@built
def test_a_network_that_the_core_does_not_know_is_numpys():
    simulator, task = simulators.make("learned:cpu-v1"), suites.get("metasyn-80x8").tasks("test")[0]
    sums = device_sums(simulator.embed(task), np.arange(80) % 8, 8)
    known = simulator.cost(task, sums)
    simulator.model = None
    assert_same(simulator.cost(task, sums), known)


@built
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 9, 70]), st.sampled_from([1, 7, 19]))
def test_sums_of_devices_are_numpys(seed, devices, width):
    rng = np.random.default_rng(seed)
    values = rng.integers(-(2**30), 2**30, (int(rng.integers(1, 30)), width)) / 2.0**14
    dtype = rng.choice([np.int64, np.int32, np.int8])
    placements = rng.integers(-1, devices, (2, int(rng.integers(0, 4)), len(values))).astype(dtype)
    assert_same(*by_both(lambda: device_sums(values, placements, devices)))
    assert_same(*by_both(lambda: device_sums(np.asfortranarray(values), placements[::2], devices)))
    first = rng.integers(0, len(values), len(placements := placements[0]))
    longest = int(len(values) - first.max(initial=0))
    found = core.device_sums(values, placements[:, :longest], devices, first)
    for start, placed, sums in zip(first, placements, found, strict=True):  # several tasks one after the other
        assert_same(device_sums(values[start : start + longest], placed[:longest], devices), sums)


@built
@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(IDS), st.sampled_from([1.0, 1.02, 1.3, 50.0]))
def test_cost_greedy_is_numpys_and_so_are_its_dead_ends(seed, simulator_id, room):
    rng, planner = np.random.default_rng(seed), simulators.make(simulator_id)
    task = draw_task(seed, speed=tuple(rng.choice([1.0, 2.0], 8)))
    task = replace(task, memory=tuple((room * task.tables.weight_bytes.sum() / rng.uniform(6, 8, 8)).astype(int)))

    def told():
        asked = counted(planner)
        try:
            return CostGreedy()(task, asked), asked.calls
        except InfeasibleTask as error:
            return str(error), 0

    c, numpy = by_both(told)
    assert c == numpy


@built
@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(list(COSTS)), st.sampled_from([1.0, 1.02, 1.3, 50.0]), st.booleans())
def test_greedies_by_named_costs_are_numpys_and_so_are_their_dead_ends(seed, cost, room, equals):
    rng = np.random.default_rng(seed)
    task = draw_task(seed, speed=tuple(rng.choice([1.0, 2.0], 8)))
    if equals:  # bytes and numbers of devices decide
        task = replace(task, tables=task.tables.take(rng.integers(3, size=task.num_tables)))
    task = replace(task, memory=tuple((room * task.tables.weight_bytes.sum() / rng.uniform(6, 8, 8)).astype(int)))

    def told():
        try:
            return Greedy(cost)(task, None)
        except InfeasibleTask as error:
            return str(error)

    c, numpy = by_both(told)
    assert c == numpy


@built
@pytest.mark.parametrize("name", ["metasyn-80x8", "metasyn-800x80", "hetero-80x8", "core-80x8-allkinds"])
def test_plans_of_suites_are_numpys(name):
    suite = suites.get(name)
    task, planner = suite.tasks("test")[0], simulators.make(suite.planner)
    c, numpy = by_both(lambda: CostGreedy()(task, planner))
    assert c == numpy


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(each_core, threads):
    simulator, task = simulators.make("learned:cpu-v1"), suites.get("metasyn-80x8").tasks("test")[1]
    placements = np.random.default_rng(0).integers(-1, 8, (3, 700, 80))
    asked = counted(simulator)
    together = asked.latency(task, placements, threads=threads)
    assert asked.calls == 2100 and together.spread.shape == (3, 700, 8)
    for i in (0, 1, 350, 699):
        alone = simulator.latency(task, placements[:, i])
        for name, values in vars(alone).items():
            assert_same(values, getattr(together, name)[:, i])


@built
def test_arrays_that_do_not_fit_are_refused():
    """Straight calls of the extension: whatever it is given it reads and writes inside arrays only."""
    c, model = core.compiled(), simulators.make("learned:cpu-v1").model
    sums, speed, out = np.zeros((2, 3, 19)), np.ones(3), np.zeros((4, 2, 3))
    c.decode(model, sums, speed, out)
    for wrong in (
        (model[:-1], sums, speed, out),
        (model[:3], sums, speed, out),
        (np.full(5, np.nan), sums, speed, out),
        (np.full(5, 60.0), sums, speed, out),
        (model, sums[..., :18].copy(), speed, out),
        (model, sums, np.ones(2), out),
        (model, sums, np.ones(0), out),
        (model, sums, speed, out[:3].copy()),
        (model, sums, speed, np.zeros((4, 3, 2))),
        (simulators.make("roofline:h100-v2").model, sums, speed, out),
        (model, sums, speed),
    ):
        with pytest.raises(ValueError):
            c.decode(*wrong)
    for wrong in ((model, sums.astype(np.float32), speed, out), (model, sums[0], speed, out), (3, sums, speed, out)):
        with pytest.raises(TypeError):
            c.decode(*wrong)
    read_only = out.copy()
    read_only.flags.writeable = False
    for wrong in ((model, sums[..., ::-1], speed, out), (model, sums, speed, read_only)):
        with pytest.raises((BufferError, ValueError)):
            c.decode(*wrong)
    rows, order, room, device = np.zeros((4, 19)), np.arange(4), np.full(3, 9), np.zeros(4, int)
    for odd in (order - 1, order + 1):
        with pytest.raises(ValueError, match="greedy wants"):
            c.greedy(model, rows, odd, np.ones(4, int), room, speed, device)
        with pytest.raises(ValueError, match="deal wants"):
            c.deal(np.zeros(4), order, np.ones(4, int), odd, speed, room, device)
    beside = np.zeros((1, 3, 19))
    c.device_sums(rows + 1, np.array([[-5, 7, 2, 2]]), np.zeros(1, int), beside)
    assert (beside[0, :2] == 0).all() and (beside[0, 2] == 2).all()
    for first in ([1], [-1], [0, 0]):
        with pytest.raises(ValueError, match="device_sums wants"):
            c.device_sums(rows, np.zeros((1, 4), int), np.array(first), beside)


@built
def test_steps_beside_arrays_are_refused():
    c, free, least, size = core.compiled(), np.ones((2, 3), int), np.ones(2, int), np.ones((4, 1), int)
    sums, vector, at, held = np.zeros((2, 3, 5)), np.zeros((4, 5)), np.zeros(2, int), np.zeros((2, 5))
    c.place(free, least, size, sums, vector, at, at, at.copy(), at.copy(), held)
    for rows, options in (([0, 4], [0, 0]), ([-1, 0], [0, 0]), ([0, 0], [3, 0]), ([0, 0], [0, -1]), ([0], [0, 0])):
        with pytest.raises(ValueError, match="place wants"):
            c.place(free, least, size, sums, vector, np.array(rows), np.array(options), at, at.copy(), held)
    with pytest.raises(ValueError, match="plans are"):
        c.place(free, np.ones(3, int), size, sums, vector, at, at, at.copy(), at.copy(), held)
    with pytest.raises(ValueError, match="masks wants"):
        c.masks(free, least, size, np.array([0, 4]), np.zeros((2, 3), np.int8))
    pieces, numbers, mask, shown = (np.zeros(shape, np.float32) for shape in ((4, 6), (2, 3), (2, 3), (2, 15)))
    told = (np.zeros(4), at, numbers.astype(float), np.ones(2), np.ones((2, 3)), mask.astype(np.int8))
    c.flat(pieces, *told, shown)
    for wrong in (
        (pieces, *told, shown[:, :14].copy()),
        (pieces[:3], *told, shown),
        (pieces, told[0], at + 4, *told[2:], shown),
    ):
        with pytest.raises(ValueError, match="flat wants"):
            c.flat(*wrong)


@built
@pytest.mark.parametrize("observation", ["table", "full", "flat"])
@pytest.mark.parametrize("name", ["Tight-80x8", "DLRM-10x2", "Mixed-10to59x4-Split"])
def test_steps_of_many_episodes_are_numpys(name, observation):
    """Episodes to their ends and beyond, of tasks of several lengths, whose devices get full."""

    def told():
        env = gymnasium.make_vec(f"shard_gym:ShardGym-{name}", num_envs=9, observation=observation)
        env.reset(seed=3)
        env.action_space.seed(0)
        steps = [env.step(env.action_space.sample()) for _ in range(130)]
        shown = [step[0].values() if isinstance(step[0], dict) else step[:1] for step in steps]
        numbers = [values for *_, infos in steps for values in infos.values()]
        return np.concatenate([np.ravel(a) for a in (*chain(*shown), *(step[1] for step in steps), *numbers)])

    c, numpy = by_both(told)
    assert c.tobytes() == numpy.tobytes()


def told_by(cwd=ROOT, **environment):
    """Exit code and output of `shard-gym --version`."""
    code = "import sys; from shard_gym_agents.cli.main import main; sys.exit(main(['--version']))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")]), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_version_tells_the_core(capsys, each_core):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"shard-gym {__version__}, core {each_core}\n")


def test_the_core_is_chosen_by_the_environment():
    code, told = told_by(SHARD_GYM_CORE="numpy")
    assert (code, told.splitlines()[0]) == (0, f"shard-gym {__version__}, core numpy")
    assert told_by(SHARD_GYM_CORE="rust") == (2, "shard-gym: SHARD_GYM_CORE is c or numpy, got 'rust'\n")


def pretend(monkeypatch, found):
    """Import this, or raise it, in the place of the extension."""

    def imported(name):
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(core, "import_module", imported)


def extension(**names):
    made = ModuleType("_compiled")
    vars(made).update(names)
    return made


def test_without_a_core_numpy_does_it_unless_c_is_asked_for(monkeypatch):
    pretend(monkeypatch, ModuleNotFoundError("no _compiled"))
    assert core.load("") is None and core.load("numpy") is None
    with pytest.raises(CoreError, match="no compiled core is there: with a C compiler, build it with"):
        core.load("c")


@pytest.mark.parametrize("wanted", ["", "c"])
@pytest.mark.parametrize(
    ("found", "told"),
    [
        (ImportError("file too short"), "cannot be loaded.*SHARD_GYM_CORE=numpy: file too short"),
        (ImportError("it was compiled for another processor"), "cannot be loaded.*another processor"),
        (extension(), f"is of version None, this package needs {core.VERSION}"),
        (extension(VERSION=0), f"is of version 0, this package needs {core.VERSION}: build it"),
        (extension(VERSION=core.VERSION, **dict.fromkeys(core.FUNCTIONS[1:], len)), "lacks decode: build it"),
    ],
    ids=["broken", "processor", "unknown", "old", "symbol"],
)
def test_a_core_that_cannot_be_used_is_refused(monkeypatch, wanted, found, told):
    pretend(monkeypatch, found)
    with pytest.raises(CoreError, match=told):
        core.load(wanted)
    assert core.load("numpy") is None


@built
def test_a_foreign_extension_is_one_line_on_the_command_line(tmp_path):
    """A copy of the package with a core of another kind of machine: what the loader says, and no traceback."""
    shutil.copytree(ROOT / "shard_gym", tmp_path / "shard_gym", ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    shutil.copytree(
        ROOT / "agents" / "shard_gym_agents", tmp_path / "shard_gym_agents", ignore=shutil.ignore_patterns("weights")
    )
    (file,) = (tmp_path / "shard_gym" / "core").glob("_compiled*")
    whole = file.read_bytes()
    file.write_bytes(b"MZ" + whole[2:])
    code, told = told_by(tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 2 and told.startswith("shard-gym: the compiled core cannot be loaded, build it with")
    file.write_bytes(whole[: len(whole) // 5])
    code, told = told_by(tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 2 and told.startswith("shard-gym: the compiled core cannot be loaded, build it with")


@built
@pytest.mark.skipif(sys.platform != "linux", reason="other loaders say so themselves")
@pytest.mark.parametrize("left", [10, 64, 200, 0.05, 0.2])
def test_a_core_that_is_cut_short_is_refused_before_it_is_loaded(tmp_path, left):
    whole = Path(core.compiled().__file__).read_bytes()
    cut, copy = tmp_path / "cut.so", tmp_path / "copy.so"
    cut.write_bytes(whole[: int(left if left > 1 else left * len(whole))])
    copy.write_bytes(whole)
    assert core._cut_short(cut) and not core._cut_short(copy)
