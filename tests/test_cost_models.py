import dataclasses
import json

import numpy as np
import pytest
import torch

from shard_gym.errors import CorruptFile, InvalidPool, UnknownName
from shard_gym.measuring import predictors
from shard_gym.measuring.fit import Fitting, fit
from shard_gym.measuring.fitting import main
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.nets import net_of
from shard_gym.simulators import features
from shard_gym.simulators.learned import Learned
from shard_gym.simulators.networks import (
    ARCHITECTURES,
    WEIGHT_GRAIN,
    Published,
    Weights,
    inputs_of,
    is_ours,
    make_network,
    on_grid,
)
from shard_gym.tables.pool import make_pool
from shard_gym.tables.traces import trace
from tests.cost_model_helpers import BATCH, made_up

QUICK = Fitting(epochs=3)


@pytest.fixture(scope="module")
def measured():
    return made_up(300)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def fitted(request, measured):
    return fit(measured, request.param, settings=QUICK)


def test_errors_by_hand():
    found = predictors.errors(np.array([1.0, 3.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    assert found["mae_ms"] == pytest.approx(2 / 3) and found["mse_ms2"] == pytest.approx(2 / 3)
    assert found["mape"] == pytest.approx(0.25) and found["bias"] == pytest.approx(0.25 / 3)
    assert found["spearman"] == pytest.approx(np.corrcoef([1, 2.5, 2.5], [1, 2, 3])[0, 1])


def test_rank_correlation_sees_order_only():
    a = np.array([3.0, 1.0, 2.0])
    assert predictors.spearman(a, np.exp(a)) == pytest.approx(1) and predictors.spearman(a, -a) == pytest.approx(-1)
    assert predictors.spearman(a, np.ones(3)) == 0


def test_coverage_by_hand():
    one = np.ones(4)
    assert predictors.coverage(one, one, np.array([1.0, 2.6, 2.7, -0.6])) == 0.75


def test_a_smaller_batch_touches_as_many_rows_as_its_trace():
    pool = make_pool(rows=[50_000, 300], pooling=[2.0, 5.0], reference_batch=8192)
    work = features.work(pool, 1024, features.Caches())
    distinct = 2.0 ** work.inputs[:, features.INPUTS.index("distinct")] - 1
    drawn = [len(np.unique(trace(pool, t, 1024)[0])) for t in range(2)]
    assert distinct == pytest.approx(drawn, rel=0.05)
    assert work.totals[:, features.TOTALS.index("lookups")].tolist() == [2048, 5120]


def test_tables_without_lookups_have_finite_inputs():
    work = features.work(make_pool(rows=[1, 10], pooling=[0.0, 0.0]), BATCH, features.Caches())
    assert np.isfinite(work.inputs).all() and (work.unit == 1).all()


def test_folds_hold_out_tables_whatever_their_dim(measured):
    shards = predictors.shards_of(measured)
    fold = shards.folds(0)[3]
    inside, outside = (set(shards.origin[np.isin(shards.shard, np.flatnonzero(f))]) for f in (fold, ~fold))
    assert fold.any() and not fold.all()
    held = inside - outside
    assert len(held) >= len(np.unique(shards.origin)) // (2 * predictors.FOLDS)
    assert (shards.sums(np.ones((len(shards.tables), 1)))[:, 0] == measured.tables_per_shard).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_numpy_and_torch_agree(architecture, measured):
    """Before any fit and with float32 sums; what remains is the rounding of weights and activations."""
    torch.manual_seed(0)
    shards = predictors.shards_of(measured)
    net = net_of(architecture, shards)
    rows = torch.from_numpy(shards.row)
    owner = torch.from_numpy(shards.shard)
    with torch.no_grad():
        tables = net.embed(rows)
        sums = torch.zeros(tables.shape[0], len(shards), tables.shape[2]).index_add(1, owner, tables)
        members = net.decode(sums).numpy()
        expected = members.mean(axis=0).T
        if not is_ours(architecture):
            expected = np.maximum(expected, 0)
    card = {"architecture": architecture, "features": list(inputs_of(architecture))}
    known = {"ranges": predictors.bounds(shards.tables), "sigma": np.array(0.1)}
    network = make_network(Weights(net.export() | known, card))
    found = network.decode(shards.sums(on_grid(network.embed(shards.tables, BATCH))))
    assert found[:2] == pytest.approx(expected, rel=2e-3, abs=2e-3)
    if is_ours(architecture):
        whole = members.sum(axis=-1)
        assert found[2] == pytest.approx(abs(whole - whole.mean(axis=0)).mean(axis=0) * 1.2533, rel=0.02, abs=1e-3)
    if architecture == "dreamshard":
        plans = sums[0, :300].reshape(100, 3, 32)
        with torch.no_grad():
            overall = net.cost("overall", plans.amax(dim=1)[None])[0].numpy()
        assert network.overall(on_grid(plans.numpy().astype(float))) == pytest.approx(overall, abs=2e-3)


def test_weights_lie_on_their_grid(fitted):
    layers = [array for name, array in fitted.tensors.items() if name.endswith(("weight", "bias"))]
    assert len(layers) >= 8
    assert all((array * WEIGHT_GRAIN == np.rint(array * WEIGHT_GRAIN)).all() for array in layers)


def test_fits_are_deterministic(fitted, measured):
    again = fit(measured, fitted.card["architecture"], settings=QUICK)
    assert again.sha256 == fitted.sha256
    other = fit(measured, fitted.card["architecture"], seed=1, settings=QUICK)
    assert other.sha256 != fitted.sha256


def test_a_fit_learns_and_beats_the_published_net():
    train, unseen = made_up(1200), made_up(300, seed=1, pool="metasyn_1_856")
    shards, mape = predictors.shards_of(unseen), {}
    for architecture, epochs in (("ours", 40), ("autoshard", 40)):
        weights = fit(train, architecture, settings=Fitting(epochs=epochs))
        network = make_network(weights)
        predicted = network.decode(shards.sums(on_grid(network.embed(shards.tables, BATCH))))[:2].sum(axis=0)
        mape[architecture] = predictors.errors(predicted, unseen.total_ms)["mape"]
        assert weights.card["shards"] == 1200 and weights.card["batch"] == BATCH
    assert mape["ours"] < 0.07 < mape["autoshard"]


def test_left_out_features_do_not_matter(measured):
    network = make_network(fit(measured, "autoshard", settings=QUICK, without="pooling"))
    tables = predictors.shards_of(measured).tables
    other = tables.with_(pooling=tables.pooling * 1.5)
    assert (network.embed(tables, BATCH) == network.embed(other, BATCH)).all()
    assert (network.embed(tables, BATCH) != network.embed(tables.with_(dim=tables.dim * 2), BATCH)).any()


def test_weights_come_back_from_their_file(fitted, tmp_path):
    fitted.save(tmp_path / "w.safetensors")
    loaded = Weights.load(tmp_path / "w.safetensors")
    assert loaded.card == fitted.card and loaded.sha256 == fitted.sha256
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_damaged_weights_are_refused(measured, tmp_path):
    path = tmp_path / "w.safetensors"
    fit(measured, "ours", settings=QUICK).save(path)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-5] ^= 1
    lied = whole.replace(b'\\"batch\\":2048', b'\\"batch\\":2049').replace(b'\\"batch\\": 2048', b'\\"batch\\": 2049')
    assert lied != whole
    for content, message in ((bytes(changed), "hash"), (lied, "hash"), (whole[:-9], "whole"), (b"", "whole")):
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=message):
            Weights.load(path)
    with pytest.raises(FileNotFoundError):
        Weights.load(tmp_path / "absent.safetensors")


def test_weights_for_other_features_are_refused(fitted):
    swapped = [fitted.card["features"][1], fitted.card["features"][0], *fitted.card["features"][2:]]
    with pytest.raises(CorruptFile, match="features"):
        make_network(dataclasses.replace(fitted, card=fitted.card | {"features": swapped}))
    with pytest.raises(CorruptFile, match="lack"):
        make_network(dataclasses.replace(fitted, tensors={}))
    with pytest.raises(UnknownName, match="autoshard"):
        make_network(dataclasses.replace(fitted, card=fitted.card | {"architecture": "oracle"}))


def test_unfit_measurements_are_refused(measured):
    with pytest.raises(InvalidPool, match="at least"):
        fit(measured.take(range(5)))
    with pytest.raises(InvalidPool, match="batch"):
        fit(dataclasses.replace(measured, card={}))
    with pytest.raises(UnknownName, match="dreamshard"):
        fit(measured, "oracle")


def test_the_command_fits_and_writes_a_card(measured, tmp_path, capsys):
    measured.save(tmp_path / "m.npz")
    out = tmp_path / "w.safetensors"
    arguments = ["--data", str(tmp_path), "--out", str(out), "--role", "judge", "--architecture", "autoshard"]
    assert main([*arguments, "--epochs", "2"]) == 0
    card = Weights.load(out).card
    assert card["role"] == "judge" and "--role judge" in card["command"]
    assert Learned(out).id == f"learned:{Weights.load(out).sha256[:12]}"  # never that of a published fit
    assert main([*arguments, "--epochs", "2", "--id", "learned:mine-v1"]) == 0
    assert Learned(out).id == "learned:mine-v1"
    assert card["data"] == Measurements.concat([measured]).content_hash
    assert "epoch 2/2" in capsys.readouterr().err
    json.dumps(card)
    assert main([*arguments, "--trend", "learned:cpu-v1"]) == 2 and "needs --pace" in capsys.readouterr().err
    (tmp_path / "m.npz").write_bytes(b"PK")
    assert main(arguments) == 2
    assert "m.npz" in capsys.readouterr().err


def shuffled(tensors: dict[str, np.ndarray], head: str, units: np.ndarray) -> dict[str, np.ndarray]:
    """The same network with the hidden units of one head in another order."""
    return tensors | {
        f"{head}/0/weight": tensors[f"{head}/0/weight"][:, units],
        f"{head}/0/bias": tensors[f"{head}/0/bias"][units],
        f"{head}/1/weight": tensors[f"{head}/1/weight"][units],
    }


def test_products_are_exact_so_that_their_order_does_not_matter(measured):
    """Exact sums make results equal to the bit in any batch, whatever BLAS does; weights off the grid would not."""
    weights = fit(measured, "autoshard", settings=QUICK)
    shards, units = predictors.shards_of(measured), np.random.default_rng(0).permutation(64)
    off_grid = {k: v * (1 + 1e-7) if k.startswith("forward/1/w") else v for k, v in weights.tensors.items()}
    same = []
    for tensors in (weights.tensors, off_grid):
        networks = [Published(t, ("forward", "backward")) for t in (tensors, shuffled(tensors, "forward", units))]
        sums = shards.sums(on_grid(networks[0].embed(shards.tables, BATCH)))
        one, other = (network.decode(sums)[0] for network in networks)
        assert one == pytest.approx(other)
        same.append((one == other).all())
    assert same == [True, False]
