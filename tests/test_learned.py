import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import make_pool, make_task
from shard_gym import simulators as registry
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import CorruptFile, SettingsIgnored
from shard_gym.measuring.fit import Fitting, fit
from shard_gym.simulators import FastSimulator, learned
from shard_gym.simulators.base import GRAIN
from shard_gym.simulators.learned import OWN, Learned
from shard_gym.simulators.networks import ARCHITECTURES, Weights
from shard_gym.task import suites
from shard_gym.task.links import Links
from tests.cost_model_helpers import BATCH, draw_task, made_up

pytestmark = pytest.mark.usefixtures("each_core")

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute", "spread")


@pytest.fixture(scope="module")
def simulators():
    measured = made_up(300)
    return {name: Learned(fit(measured, name, settings=Fitting(epochs=3))) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def ours(simulators):
    return simulators["ours"]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(tuple(ARCHITECTURES)))
def test_answers_are_the_same_bit_for_bit_in_any_batch(simulators, seed, name):
    simulator, task = simulators[name], draw_task(seed, "iteration")
    rng = np.random.default_rng(seed)
    placements = rng.integers(-1, task.num_devices, (400, task.num_tables))  # more shards than are decoded in one go
    together = simulator.latency(task, placements)
    tables = simulator.embed(task)
    assert (tables * GRAIN == np.rint(tables * GRAIN)).all()
    for p in (0, 1, 255, 399):
        sums = np.zeros((task.num_devices, tables.shape[1]))
        for t in rng.permutation(task.num_tables):
            if placements[p, t] >= 0:
                sums[placements[p, t]] += tables[t]
        alone = simulator.decode(task, sums)
        few = simulator.latency(task, placements[max(p - 2, 0) : p + 1])
        for phase in PHASES:
            assert (getattr(alone, phase) == getattr(together, phase)[p]).all()
            assert (getattr(few, phase)[-1] == getattr(together, phase)[p]).all()


def test_a_table_embeds_alike_in_any_task(simulators):
    task = draw_task(3)
    for simulator in simulators.values():
        tables = simulator.embed(task)
        for t in (0, task.num_tables - 1):
            alone = dataclasses.replace(task, tables=task.tables.take([t]))
            assert (simulator.embed(alone)[0] == tables[t]).all()


def test_every_learned_simulator_is_fast_and_computes_nothing_for_nothing(simulators):
    task = draw_task(1)
    for simulator in simulators.values():
        assert isinstance(simulator, FastSimulator)
        empty = simulator.latency(task, np.full(task.num_tables, -1))
        assert all((getattr(empty, phase) == 0).all() for phase in PHASES)
        full = simulator.latency(task, np.zeros(task.num_tables, int))
        assert full.compute[0] > 0 and full.spread[0] > 0
        assert (full.compute[1:] == 0).all() and (full.spread[1:] == 0).all()


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(("ours", "physics")))
def test_one_more_table_never_makes_our_shard_cheaper(simulators, seed, name):
    task, ours = draw_task(seed), simulators[name]
    placement = np.zeros(task.num_tables, int)
    steps = np.where(np.arange(task.num_tables) <= np.arange(task.num_tables)[:, None], placement, -1)
    compute = ours.latency(task, steps).compute[:, 0]
    assert (np.diff(compute) >= 0).all() and compute[0] > 0


def test_a_slower_device_takes_longer_and_the_batch_is_the_fitted_one(ours):
    task = draw_task(5)
    placement = np.arange(task.num_tables) % 8
    at_speed = dataclasses.replace(task, speed=(0.5, *[1.0] * 7))
    ratio = ours.latency(at_speed, placement).compute / ours.latency(task, placement).compute
    assert ratio[0] == pytest.approx(2) and (ratio[1:] == 1).all()
    doubled = ours.latency(dataclasses.replace(task, batch=2 * BATCH), placement).compute
    assert ours.batch == BATCH and (doubled == ours.latency(task, placement).compute).all()


def test_communication_comes_from_the_tasks_links(ours):
    links = Links(port=1e3, latency_ms=1.0)
    task = draw_task(6, "iteration", links=links)
    placement = np.arange(task.num_tables) % 8
    dims = np.bincount(placement, task.tables.dim, minlength=8)
    latency = ours.latency(task, placement)
    assert latency.forward_comm == pytest.approx(links.all_to_all_ms(dims, BATCH))
    assert (latency.forward_comm == latency.backward_comm).all()
    assert (ours.latency(dataclasses.replace(task, objective="kernel"), placement).forward_comm == 0).all()
    elsewhere = dataclasses.replace(task, links=None)
    assert (ours.latency(elsewhere, placement).forward_comm > 0).all()


def test_tables_unlike_the_fitted_ones_are_told(ours):
    task = draw_task(7)
    assert (ours.distance(task) == 0).all()
    tables = task.tables
    strange = {
        "dim": tables.with_(dim=np.full(len(tables), 2048)),
        "row_bytes": tables.with_(dim=np.full(len(tables), 128), dtype=("fp32",) * len(tables)),
        "rows": tables.with_(rows=np.full(len(tables), 10**10)),
        "pooling": tables.with_(pooling=np.full(len(tables), 5_000.0)),
    }
    for changed in strange.values():
        assert (ours.distance(dataclasses.replace(task, tables=changed)) > 0).all()
    nearer, farther = (
        ours.distance(dataclasses.replace(task, tables=tables.with_(dim=np.full(len(tables), d)))).mean()
        for d in (256, 2048)
    )
    assert farther > nearer


def test_the_spread_grows_with_the_distance(ours):
    task = draw_task(8)
    placement = np.zeros(task.num_tables, int)
    near = ours.latency(task, placement)
    wide = dataclasses.replace(task, tables=task.tables.with_(dim=np.full(task.num_tables, 2048)))
    far = ours.latency(wide, placement)
    near_share, far_share = (latency.spread[0] / latency.compute[0] for latency in (near, far))
    assert ours.sigma <= near_share < far_share
    assert far_share >= ours.sigma + min(ours.distance(wide).min(), 3)
    assert near.distance[0] == 0 < far.distance[0] and (far.distance[1:] == 0).all()


@pytest.mark.parametrize("objective", ["kernel", "iteration"])
def test_the_doubt_between_plans_is_what_members_say_of_both_and_the_shared_error(ours, objective):
    task = dataclasses.replace(draw_task(8, objective), speed=(1.0, 0.5, *(1.0,) * 6))
    tables = ours.embed(task)
    one, other = (np.zeros((8, tables.shape[1])) for _ in range(2))
    one[0], other[1] = tables.sum(axis=0), tables.sum(axis=0)  # everything on one device, or on one half as fast
    compute = ours.decode(task, one).compute.max()
    assert ours.doubt(task, one, one) == pytest.approx(ours.sigma * compute, rel=1e-12)
    members = ours.network.by_member(one[:1, OWN:]).sum(axis=1)[:, 0] * 1e-3  # other - one = 2 one - one
    assert ours.doubt(task, one, other) == pytest.approx(np.hypot(members.std(), ours.sigma * compute), rel=1e-9)


def test_the_environment_tells_spread_and_distance(ours):
    task = draw_task(2, n=8)
    env = ShardingEnv([task], simulator=ours, info="full")
    env.reset(seed=0)
    for _ in range(task.num_tables):
        info = env.step(0)[4]
    assert info["spread"] == info["latency"].spread[0] > 0 and info["distance"] == info["latency"].distance[0]


def test_the_id_and_the_card_come_from_the_file(ours, simulators, tmp_path):
    weights = fit(made_up(100), "autoshard", settings=Fitting(epochs=1))
    assert Learned(weights).id == f"learned:{weights.sha256[:12]}"
    named = dataclasses.replace(weights, card=weights.card | {"id": "learned:abacus-v1"})
    named.save(tmp_path / "w.safetensors")
    simulator = Learned(tmp_path / "w.safetensors")
    assert simulator.id == "learned:abacus-v1" and simulator.card["shards"] == 100


def test_weights_without_what_the_simulator_needs_are_refused():
    weights = fit(made_up(100), "autoshard", settings=Fitting(epochs=1))
    for broken in (
        Weights({k: v for k, v in weights.tensors.items() if k != "ranges"}, weights.card),
        Weights(weights.tensors, {k: v for k, v in weights.card.items() if k != "batch"}),
    ):
        with pytest.raises(CorruptFile, match="fit them again"):
            Learned(broken)


def told(simulator, task):
    """Warnings of a simulator that is asked twice, as in a new process."""
    learned._warn.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", SettingsIgnored)
        for _ in range(2):
            simulator.latency(task, np.zeros(task.num_tables, int))
    return [str(warning.message) for warning in found]


def test_settings_that_are_not_the_fits_are_told_once():
    simulator, pool = registry.make("learned:cpu-v1"), make_pool([1000, 2000], dtype="fp16", reference_batch=2048)
    alike = make_task(pool, 2, 1, optimizer="rowwise_adagrad")
    assert (simulator.own_settings(alike), told(simulator, alike)) == ("", [])
    for task, own in {
        make_task(pool, 2, 1): "optimizer rowwise_adagrad",
        dataclasses.replace(alike, batch=4096): "batch 2,048",
        dataclasses.replace(alike, tables=pool.with_(dtype=("fp16", "fp32"))): "fp16 weights",
    }.items():
        assert simulator.own_settings(task) == own
        assert told(simulator, task) == [
            f"learned:cpu-v1 answers for {own}, whatever the task's: it was fitted to that"
        ]


def test_a_suite_that_has_chosen_the_fit_is_not_warned():
    task = suites.get("metasyn-80x8").tasks("test")[0]
    for name in ("learned:cpu-v1", "learned:cpu-judge-v1"):
        simulator = registry.make(name)
        assert simulator.own_settings(task) == "batch 2,048, optimizer rowwise_adagrad"
        assert told(simulator, task) == []
    other = suites.get("dlrm-50x4").tasks("test")[0]
    assert len(told(registry.make("learned:cpu-v1"), other)) == 1


def test_a_card_that_tells_no_settings_is_believed(ours):
    assert ours.own_settings(draw_task(0)) == ""
