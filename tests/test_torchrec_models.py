"""A TorchRec model planned in one call."""

import pytest

from shard_gym import Plan, simulators
from shard_gym.errors import InfeasibleTask, InvalidPlan, MissingDependency, UnknownName
from shard_gym.task.links import Links
from shard_gym.torchrec.modules import task_of_module
from shard_gym.torchrec.plans import from_torchrec, to_torchrec
from shard_gym_agents import make
from shard_gym_agents.models import plan_model

torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")


class Tower(torch.nn.Module):
    """Tables, and what is on top of them."""

    def __init__(self, *tables):
        super().__init__()
        configs = [
            torchrec.EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=16, feature_names=[f"{name}_id"])
            for name, rows in tables
        ]
        self.tables = torchrec.EmbeddingBagCollection(configs, device=torch.device("meta"))
        self.over = torch.nn.Linear(16 * len(tables), 1)


def model(rows=1_000):
    return torch.nn.ModuleDict({"user": Tower(("user", rows), ("city", 50)), "item": Tower(("item", 3_000))})


def test_one_call_does_what_three_do():
    pooling = {"user_id": 3.0, "item_id": 20.0}
    task, plan, sharding_plan = plan_model(model(), 2, 1, pooling=pooling, batch=64, agent="cost-greedy")
    told = {"accounting": "true", "kinds": ("tw", "cw", "rw", "dp")}
    assert task == task_of_module(model(), 2, 1, pooling=pooling, batch=64, **told)
    assert plan == make("cost-greedy")(task, simulators.make("roofline:h100-v1"))
    assert sharding_plan == to_torchrec(plan, task, model())
    assert set(sharding_plan.plan) == {"user.tables", "item.tables"}


def test_agents_and_simulators_may_be_given_as_such():
    asked = []

    def agent(task, planner):
        asked.append(planner.id)
        return Plan((1, 0, 1))

    found = plan_model(model(), 2, 1, agent=agent, simulator=simulators.make("torchrec:cuda-v1"), device="cpu")
    assert (found.plan.device, asked) == ((1, 0, 1), ["torchrec:cuda-v1"])
    with pytest.raises(UnknownName, match="simulator 'h100'"):
        plan_model(model(), 2, 1, simulator="h100")
    with pytest.raises(UnknownName, match="setting 'gpus'"):
        plan_model(model(), 2, 1, gpus=2)


def test_hosts_are_the_groups_of_the_links():
    links = Links(port=1e8, group=2)
    found = plan_model(model(), 4, 1, agent=lambda task, planner: Plan((3, 0, 1)), links=links)
    (shard,) = found.sharding_plan.plan["user.tables"]["user"].sharding_spec.shards
    assert str(shard.placement) == "rank:3/cuda:1"


def test_kinds_and_hosts_memory_go_through():
    """The table `user` has 4 GiB on devices of 1: it lives in a host's memory, with some of its rows in a cache."""
    allowed = dict(kinds=("tw", "rw"), residences=("hbm", "cached"), host_memory=2**32)
    task, plan, sharding_plan = plan_model(model(rows=2**26), 2, 1, agent="cost-greedy", batch=64, **allowed)
    assert (task.kinds, task.residences, task.host_memory) == tuple(allowed.values())
    user = sharding_plan.plan["user.tables"]["user"]
    assert user.compute_kernel == "fused_uvm_caching" and user.cache_params.load_factor == plan.share[0] < 0.5
    assert from_torchrec(sharding_plan, task) == plan


def test_a_model_that_is_too_big_is_refused_in_words():
    """The model is on meta: its 2**46 bytes are nowhere."""
    with pytest.raises(InfeasibleTask, match="user"):
        plan_model(model(rows=2**40), 2, 1)


def test_a_stored_plan_is_held_against_the_model_that_it_was_made_for(tmp_path):
    """Kept with its task, as a plan alone names no tables."""
    task, plan, sharding_plan = plan_model(model(), 2, 1, agent="size-greedy")
    plan.save(tmp_path / "plan.json")
    (tmp_path / "task.json").write_text(task.to_json())
    back, stored = Plan.load(tmp_path / "plan.json"), type(task).from_json((tmp_path / "task.json").read_text())
    assert to_torchrec(back, stored, model()) == sharding_plan
    with pytest.raises(InvalidPlan, match="'user' is 1000 rows x 16 columns of fp32 in the task, 999 rows"):
        to_torchrec(back, stored, model(rows=999))


def test_without_torchrec_it_says_how_to_install_it(monkeypatch):
    there = model()
    monkeypatch.setitem(__import__("sys").modules, "torchrec", None)
    with pytest.raises(MissingDependency, match=r"pip install --no-deps torchrec==1\.8"):
        plan_model(there, 2, 1)
