"""Plans to TorchRec's sharding plans and back, and a model that runs under them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import make_pool
from shard_gym.errors import InvalidPlan
from shard_gym.plan.plan import Plan
from shard_gym.task.links import Links
from shard_gym.task.task import Constraints, Task
from shard_gym.torchrec.launch import launch
from shard_gym.torchrec.layouts import layouts_of
from shard_gym.torchrec.plans import from_torchrec, to_torchrec, validate

torchrec = pytest.importorskip("torchrec")
torch = pytest.importorskip("torch")
sharding_plan = pytest.importorskip("torchrec.distributed.sharding_plan")
CacheParams = pytest.importorskip("torchrec.distributed.types").CacheParams


def task_of(rows, dims, devices=4, **settings):
    names = tuple(f"t{i}" for i in range(len(rows)))
    pool = make_pool(rows, dims, name=names, dtype="fp32", reference_batch=8)
    return Task(pool, (2**30,) * devices, **{"splits_allowed": True, **settings})


def bags(task, device="meta", **config):
    """The EmbeddingBagCollection that a task describes."""
    tables = task.tables
    return torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                num_embeddings=int(tables.rows[t]), embedding_dim=int(tables.dim[t]), name=name, feature_names=[f"f{t}"]
            )
            for t, name in enumerate(tables.name)
        ],
        device=torch.device(device),
        **config,
    )


def sequences(task, device="meta"):
    tables = task.tables
    configs = [
        torchrec.EmbeddingConfig(
            num_embeddings=int(tables.rows[t]), embedding_dim=int(tables.dim[t]), name=name, feature_names=[f"f{t}"]
        )
        for t, name in enumerate(tables.name)
    ]
    return torchrec.EmbeddingCollection(tables=configs, device=torch.device(device))


ALL_KINDS = Plan(
    device=(1, 0, 0, 2, 0, 3),
    splits=(1,),
    kind=("tw", "tw", "rw", "twrw", "dp", "tw"),
    devices=((1,), (0,), (0, 1, 2, 3), (2, 3), (0, 1, 2, 3), (3,)),
)


def test_every_kind_is_what_torchrec_itself_makes_of_it():
    task = task_of([10, 10, 10, 9, 5], [8, 16, 4, 4, 4])
    module = bags(task)
    ours = to_torchrec(ALL_KINDS, task, module, local_world_size=2)
    theirs = sharding_plan.construct_module_sharding_plan(
        module,
        {
            "t0": sharding_plan.table_wise(rank=1, compute_kernel="fused"),
            "t1": sharding_plan.column_wise(ranks=[0, 3], compute_kernel="fused"),
            "t2": sharding_plan.row_wise(compute_kernel="fused"),
            "t3": sharding_plan.table_row_wise(host_index=1),
            "t4": sharding_plan.data_parallel(),
        },
        local_size=2,
        world_size=4,
        device_type="cuda",
    )
    theirs["t3"].compute_kernel = "fused"  # of table_row_wise it is no argument
    assert list(ours.plan) == [""]
    assert ours.plan[""] == theirs
    assert from_torchrec(ours, task) == from_torchrec(ours, module) == ALL_KINDS


def test_grids_and_host_memory_are_what_torchrec_itself_makes_of_them():
    every = (0, 1, 2, 3)
    task = task_of([11, 20, 9, 8], [256, 8, 8, 8], objective="iteration", links=Links(1e8, group=2))
    plan = Plan(
        device=(2, 1, 0, 0, 0),
        splits=(0,),
        kind=("grid", "tw", "rw", "twrw", "grid"),
        devices=((2, 3), (1,), every, (0, 1), (0, 1)),
        residence=("hbm", "uvm", "cached", "hbm", "hbm"),
        share=(1, 0, 0.4, 1, 1),
    )
    module = bags(task)
    theirs = sharding_plan.construct_module_sharding_plan(
        module,
        {
            "t0": sharding_plan.grid_shard(host_indexes=[1, 0]),
            "t1": sharding_plan.table_wise(rank=1, compute_kernel="fused_uvm"),
            "t2": sharding_plan.row_wise(compute_kernel="fused_uvm_caching"),
            "t3": sharding_plan.table_row_wise(host_index=0),
        },
        local_size=2,
        world_size=4,
        device_type="cuda",
    )
    theirs["t0"].compute_kernel = theirs["t3"].compute_kernel = "fused"  # of grid_shard it is no argument
    theirs["t2"].cache_params = CacheParams(load_factor=0.4)
    ours = to_torchrec(plan, task, module)
    assert ours.plan[""] == theirs
    assert from_torchrec(ours, task) == from_torchrec(ours, module) == plan


def test_shards_by_hand():
    task = task_of([10, 9], [32, 24])
    layouts = layouts_of(Plan((3, 0, 1, 1), (0, 2), ("tw", "cw", "tw", "tw"), ((3,), (0, 2), (1,), (1,))), task)
    assert layouts["t0"].shards == ((0, 10, 0, 16, 3), (0, 10, 16, 8, 1), (0, 10, 24, 8, 1))
    assert (layouts["t1"].kind, layouts["t1"].shards) == ("cw", ((0, 9, 0, 12, 0), (0, 9, 12, 12, 2)))


@st.composite
def tasks_and_plans(draw):
    """Tables of all kinds; columns halved at random."""
    n, devices = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4, 6]))
    rows = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    dims = draw(st.lists(st.sampled_from([4, 8, 12, 24, 32, 64]), min_size=n, max_size=n))
    task = task_of(rows, dims, devices)
    splits = []
    for _ in range(draw(st.integers(0, 6))):
        can = [i for i, dim in enumerate(task.split(splits).tables.dim.tolist()) if dim % 8 == 0]
        splits += [draw(st.sampled_from(can))] if can else []
    local = draw(st.sampled_from([k for k in range(1, devices + 1) if devices % k == 0]))
    tables = task.split(splits)
    split = {t.partition("/")[0] for t in tables.tables.name if "/" in t}
    placed = [draw(_placed(tables, i, split, devices, local)) for i in range(tables.num_tables)]
    kinds, places = zip(*placed, strict=True)
    return task, Plan(tuple(p[0] for p in places), tuple(splits), kinds, places), local


def _placed(tables, i, split, devices, local):
    rank = st.integers(0, devices - 1)
    dim, name = int(tables.tables.dim[i]), tables.tables.name[i].partition("/")[0]
    ways = [rank.map(lambda r: ("tw", (r,)))]
    ways += [st.tuples(st.just("cw"), st.tuples(*[rank] * k)) for k in (2, 3) if dim % (4 * k) == 0]
    if name not in split:
        every = tuple(range(devices))
        ways += [st.sampled_from([("rw", every), ("dp", every)]), rank.map(lambda r: ("cw", (r,)))]
        ways += [rank.map(lambda r: ("twrw", tuple(range(r // local * local, r // local * local + local))))]
    return st.one_of(ways)


@settings(max_examples=75, deadline=None)
@given(tasks_and_plans())
def test_there_and_back(drawn):
    task, plan, local = drawn
    theirs = to_torchrec(plan, task, bags(task), local_world_size=local, device="cpu")
    try:
        back = from_torchrec(theirs, task)
    except InvalidPlan as error:
        assert "neither halves nor equal" in str(error)  # pieces of kind cw: thirds beside halves
        assert "cw" in plan.kind
        return
    assert layouts_of(back, task, local) == layouts_of(plan, task, local)
    assert to_torchrec(back, task, bags(task), local_world_size=local, device="cpu") == theirs
    assert from_torchrec(theirs, task) == back
    assert Plan.from_dict(back.to_dict()) == back
    if set(plan.kind) == {"tw"} and not plan.splits:
        assert back == plan


def test_collections_deep_in_a_model_keep_their_paths():
    task = task_of([10, 20], [8, 8])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = torch.nn.ModuleDict({"ebc": bags(Task(task.tables.take([0]), task.memory))})
            self.ec = sequences(Task(task.tables.take([1]), task.memory))
            self.dense = torch.nn.Linear(2, 2)

    theirs = to_torchrec(Plan((3, 2)), task, Model())
    assert {path: {t: s.ranks for t, s in tables.items()} for path, tables in theirs.plan.items()} == {
        "deep.ebc": {"t0": [3]},
        "ec": {"t1": [2]},
    }
    assert from_torchrec(theirs, task) == Plan((3, 2))
    assert str(theirs.plan["ec"]["t1"].sharding_spec.shards[0].placement) == "rank:2/cuda:2"


def test_torchrecs_own_planner_comes_back():
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

    task = task_of([1000, 2000, 500], [64, 32, 16], devices=2)
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=2, compute_device="cuda"), batch_size=8)
    theirs = planner.plan(bags(task), [sharding_plan.EmbeddingBagCollectionSharder()])
    plan = from_torchrec(theirs, task)
    again = to_torchrec(plan, task, bags(task))
    for name, sharding in theirs.plan[""].items():
        mine = again.plan[""][name]
        assert (mine.ranks, mine.sharding_type) == (sharding.ranks, sharding.sharding_type)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan((0,)), "2 tables need a device each, the plan has 1"),
        (Plan((0, 4)), "table 1 is on device 4; devices are 0..3"),
        (Plan((0, -1)), "table 1 is not placed"),
        (Plan((0, 0), (), ("tw", "rw"), ((0,), (0, 1))), "'t1'. is rw on devices.*to all, 0 to 3, in order"),
        (Plan((0, 1), (), ("tw", "twrw"), ((0,), (1, 2))), "'t1'. is twrw on devices.*to all 2 of a host, in order"),
        (Plan((0, 0), (), ("tw", "tw"), ((0,), (0, 1))), "'t1'. is tw on devices.*is on one"),
        (Plan((0, 0), (), ("tw", "cw"), ((0,), (0, 1, 2))), "'t1'.: 16 columns do not make 3 equal shards"),
        (Plan((0, 0, 0), (1,), ("tw", "rw", "tw"), ((0,), (0, 1, 2, 3), (0,))), "a piece of it is rw"),
    ],
)
def test_plans_that_torchrec_cannot_follow(plan, message):
    task = task_of([10, 20], [8, 16])
    with pytest.raises(InvalidPlan, match=message):
        to_torchrec(plan, task, bags(task), local_world_size=2)


def test_a_plan_for_another_model_is_refused():
    task, plan = task_of([10, 20], [8, 16]), Plan((0, 1))
    validate(plan, task, bags(task))
    others = {
        "'t1' is not in the model": task_of([10], [8]),
        "'t2' of the model is not in the task": task_of([10, 20, 30], [8, 16, 4]),
        "'t1' is 20 rows x 16 columns of fp32 in the task, 21 rows x 16 columns": task_of([10, 21], [8, 16]),
        "16 columns of fp32 in the task, 20 rows x 8 columns of fp32 in the model": task_of([10, 20], [8, 8]),
    }
    for message, other in others.items():
        with pytest.raises(InvalidPlan, match=message):
            validate(plan, task, bags(other))
    halved = Task(task.tables.with_(dtype=("fp16", "fp32")), task.memory)
    with pytest.raises(InvalidPlan, match="columns of fp16 in the task, 10 rows x 8 columns of fp32"):
        validate(plan, halved, bags(task))
    doubled = Task(task.tables.with_(name=("t0", "t0")), task.memory)
    with pytest.raises(InvalidPlan, match="'t0' is the name of several tables of the task"):
        validate(plan, doubled, bags(task))


def test_the_world_is_that_of_the_task():
    task = task_of([10], [8])
    for told, message in (
        ({"world_size": 8}, "4 devices, the world 8 ranks"),
        ({"local_world_size": 3}, "no whole number of hosts"),
        ({"device": "tpu"}, "cuda or cpu"),
        ({"sharders": []}, "no sharder is for EmbeddingBagCollection"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            to_torchrec(Plan((0,)), task, bags(task), **told)


def test_what_collections_that_do_not_pool_cannot_do():
    task = task_of([10, 20], [16, 16])
    host = Plan((0, 0), (), ("tw", "twrw"), ((0,), (0, 1, 2, 3)))
    with pytest.raises(InvalidPlan, match="TorchRec on cuda has no twrw"):
        to_torchrec(host, task, sequences(task))
    copies = Plan((0, 0), (), ("tw", "dp"), ((0,), (0, 1, 2, 3)))
    assert to_torchrec(copies, task, sequences(task)).plan[""]["t1"].sharding_type == "data_parallel"
    with pytest.raises(InvalidPlan, match="TorchRec on cpu has no dp"):
        to_torchrec(copies, task, sequences(task), device="cpu")
    with pytest.raises(InvalidPlan, match=r"equally wide, not \[4, 8\]"):
        to_torchrec(Plan((0, 1, 2, 3), (0, 2)), task, sequences(task))


def test_sharding_plans_that_no_plan_can_say():
    task = task_of([10, 20], [16, 16])

    def changed(**attributes):
        theirs = to_torchrec(Plan((0, 1, 2), (0,)), task, bags(task))
        for attribute, value in attributes.items():
            setattr(theirs.plan[""]["t0"], attribute, value)
        return theirs

    for attributes, message in (
        ({"sharding_type": "hybrid"}, "'t0' is hybrid, which plans cannot say"),
        ({"compute_kernel": "key_value"}, "kernel key_value"),
        ({"ranks": [0, 1]}, "ranks says 1, its sharding_spec 2"),
        ({"ranks": [0]}, "one shard for each of its ranks"),
        ({"sharding_type": "row_wise"}, "'t0' of 10 x 16 as rw has shards"),
        ({"sharding_type": "table_wise"}, "'t0' of 10 x 16 as tw has shards"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            from_torchrec(changed(**attributes), task)
    uneven = changed()
    for shard, (first, width) in zip(uneven.plan[""]["t0"].sharding_spec.shards, [(0, 4), (4, 12)], strict=True):
        shard.shard_offsets, shard.shard_sizes = [0, first], [10, width]
    with pytest.raises(InvalidPlan, match=r"shards of \[4, 12\] columns: neither halves nor equal"):
        from_torchrec(uneven, task)
    missing = changed()
    del missing.plan[""]["t1"]
    with pytest.raises(InvalidPlan, match="'t1' is not in the sharding plan"):
        from_torchrec(missing, task)
    missing.plan["other"] = dict(missing.plan[""])
    with pytest.raises(InvalidPlan, match="two tables 't0'"):
        from_torchrec(missing, task)
    with pytest.raises(InvalidPlan, match="'t0' has 16 columns, its shards 8"):
        from_torchrec(to_torchrec(Plan((0, 0, 1), (0,)), (small := task_of([10, 20], [8, 16])), bags(small)), task)
    with pytest.raises(InvalidPlan, match=r"is on device 2; devices are 0\.\.1"):
        from_torchrec(changed(), task_of([10, 20], [16, 16], devices=2))
    pinned = task_of([10, 20], [16, 16], constraints=Constraints(no_split=(0,)))
    with pytest.raises(InvalidPlan, match="must not be split"):
        from_torchrec(changed(), pinned)


RUN = task_of([10, 10, 10, 9, 5, 7], [32, 16, 4, 4, 4, 8], devices=2)
RUN_PLAN = Plan(  # t0: 16 columns on rank 1, then 8 on each; t1: both halves on rank 0
    device=(1, 0, 0, 0, 0, 1, 0, 1, 0),
    splits=(0, 6, 1),
    kind=("tw", "tw", "rw", "twrw", "dp", "tw", "tw", "tw", "tw"),
    devices=((1,), (0,), (0, 1), (0, 1), (0, 1), (1,), (0,), (1,), (0,)),
)
RUN_ROWS = task_of([10, 12, 14], [32, 32, 32], devices=2)
RUN_ROWS_PLAN = Plan((1, 0, 0, 0), (0,), ("tw", "rw", "tw", "tw"), ((1,), (0, 1), (0,), (0,)))


def run_on_a_rank():
    """Forward and backward under a plan, which must give what the model gives that is not sharded."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    rank = torch.distributed.get_rank()
    for task, plan, make in ((RUN, RUN_PLAN, bags), (RUN_ROWS, RUN_ROWS_PLAN, sequences)):
        torch.manual_seed(0)  # the same weights on every rank
        whole, model = make(task, "cpu"), make(task, "cpu")
        sharded = DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(torch.distributed.group.WORLD),
            device=torch.device("cpu"),
            plan=to_torchrec(plan, task, make(task), device="cpu"),
        )
        held = fill(sharded, whole)
        for name, layout in layouts_of(plan, task).items():
            assert held.get(name, []) == [shard[:4] for shard in layout.shards if shard[4] == rank], name
        lengths = torch.tensor([1, 0, 3] * task.num_tables)
        ids = torch.arange(int(lengths.sum())) * 3 + rank
        batch = torchrec.KeyedJaggedTensor([f"f{t}" for t in range(task.num_tables)], ids % 5, lengths=lengths)
        expected, found = whole(batch), sharded(batch).wait()
        for feature in batch.keys():  # noqa: SIM118  a KeyedJaggedTensor is no dict
            one, other = expected[feature], found[feature]
            torch.testing.assert_close(*((one, other) if make is bags else (one.values(), other.values())))
        (
            found.values() if make is bags else torch.cat([rows.values().ravel() for rows in found.values()])
        ).sum().backward()


def fill(sharded, whole):
    """Give the shards the weights of the whole model, table by table; what this rank holds."""
    held = {}
    for key, value in sharded.state_dict().items():
        full = whole.state_dict()[key]
        name = key.split(".")[1]
        if not hasattr(value, "local_shards"):
            value.data.copy_(full)
            if full.ndim == 2:  # a table, not weights of positions
                held[name] = [(0, full.shape[0], 0, full.shape[1])]
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.data.copy_(full[row : row + rows, column : column + columns])
            held.setdefault(name, []).append((row, rows, column, columns))
    return held


@pytest.mark.usefixtures("warm_ranks")
def test_a_model_runs_under_a_plan_of_all_kinds():
    launch(run_on_a_rank, 2)


def test_arrays_are_ints():
    task = task_of([10], [8])
    sharding = to_torchrec(Plan(np.array([2])), task, bags(task)).plan[""]["t0"]
    assert all(type(number) is int for shard in sharding.sharding_spec.shards for number in shard.shard_sizes)
