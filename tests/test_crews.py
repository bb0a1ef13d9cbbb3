"""Portions of episodes and who plays them: actors that come, go and die, with a cluster that is played by hand."""

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shard_gym.errors import ClusterError, SimulatorError
from shard_gym.measuring import cores
from shard_gym.work.terms import Failed, Lost, Node
from shard_gym_agents.learners import crew_ray, crews
from shard_gym_agents.learners.autoshard import Config, Elsewhere, Learner
from shard_gym_agents.learners.autoshard_actors import Answer, Request
from shard_gym_agents.learners.crews import MOST_DEATHS, ActorLost, Crew, Event
from tests.learner_helpers import one_thread, same, toy_planner, toy_suite  # noqa: F401

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
SMALL = Config(num_envs=8, batch=4, portion=2)


class Stand:
    """A place without actors: what they would do is told by a test."""

    def __init__(self, *events):
        self.news, self.begun = list(events), []

    def put(self, weights):
        return weights

    def begin(self, actor, order):
        self.begun.append((actor, order.key))

    def events(self, waits):
        told, self.news = self.news[:1], self.news[1:]
        assert told or not waits, "nothing happens any more"
        return told


@pytest.fixture
def crew(monkeypatch):
    monkeypatch.setattr(Answer, "together", classmethod(lambda cls, parts: parts))
    return lambda *events: Crew(Stand(*events), portions=3)


def played(actor, request, number, name=""):
    return Event(actor, (request, number), name or f"{request}.{number}")


REQUEST = Request(7, 0, {})


def test_portions_of_a_lost_actor_come_first_and_count_once(crew):
    """Actor 1 is lost with portion 1; actor 2, which comes then, plays it before 2."""
    made = crew(
        Event(0), Event(1), Event(1, lost="killed"), Event(2), played(0, 0, 0), played(2, 0, 1), played(0, 0, 2)
    )
    made.send(REQUEST)
    assert made.receive() == ["0.0", "0.1", "0.2"]
    assert [key for _, (_, key) in made.place.begun] == [0, 1, 2, 1, 2] or made.place.begun[-1][0] in (0, 2)
    assert len(made.place.begun) >= 4 and not made.waiting


def test_seeds_of_portions_are_their_numbers():
    """The first portion of a request has the draws that the whole had when it was one portion."""
    few, many = (Crew(Stand(), portions) for portions in (1, 4))
    for one in (few, many):
        one.send(REQUEST)
    assert [order.seed for order in many.waiting][:1] == [order.seed for order in few.waiting]
    assert len({order.seed for order in many.waiting}) == 4


def test_what_was_asked_before_a_new_beginning_is_not_listened_to(crew):
    made = crew(Event(0), played(0, 0, 0), played(0, 0, 1), played(0, 1, 0), played(0, 1, 1), played(0, 1, 2))
    made.send(REQUEST)
    made.tend()
    made.begin_anew()
    made.send(REQUEST)
    assert made.receive() == ["1.0", "1.1", "1.2"]


def test_episodes_that_kill_every_actor_end_the_run(crew):
    made = crew(*(event for i in range(MOST_DEATHS) for event in (Event(i), Event(i, lost="out of memory"))))
    made.send(REQUEST)
    with pytest.raises(ActorLost, match=r"same episodes.*out of memory.*fewer --actors"):
        made.receive()


def test_actors_that_never_begin_end_the_run(crew):
    made = crew(*(Event(i, lost="no torch") for i in range(crews.MOST_UNBORN)))
    made.send(REQUEST)
    with pytest.raises(ActorLost, match=r"as they began.*no torch"):
        made.receive()


class Cluster:
    """A cluster in this process: workers answer at once, and nodes come and go as a test says."""

    def __init__(self, *names):
        self.machines = {name: Node(name, f"host/{name}", "host", {"CPU": 2.0}) for name in names}
        self.wrong, self.answers, self.fired, self.count = {}, {}, [], 0

    def nodes(self):
        return list(self.machines.values())

    def _ticket(self, node, answer):
        self.count += 1
        self.answers[self.count] = (node, answer)
        return self.count

    def checking(self, node):
        return self._ticket(node, self.wrong.get(node.id, ""))

    def hired(self, node, terms):
        return SimpleNamespace(node=node, worker=None)

    def call(self, worker, method, *given):
        if method == "begin":
            make, slot, _ = given
            worker.worker = make(slot)
            return self._ticket(worker.node, {})
        return self._ticket(worker.node, ([worker.worker.do(order) for order in given[0]], 0.1))

    def fire(self, worker):
        self.fired.append(worker.node.id)

    def ready(self, tickets, seconds):
        return list(tickets)[:1]

    def answer(self, ticket):
        node, answer = self.answers.pop(ticket)
        return answer if node.id in self.machines else Lost(died=False)


class Memory(crew_ray.Store):
    """A store that holds things as they are."""

    def put(self, value):
        return value

    def get(self, held):
        return held


@pytest.fixture
def on_cluster(monkeypatch):
    monkeypatch.setattr(crew_ray, "Store", Memory)
    monkeypatch.setattr(crew_ray, "POLL_SECONDS", 0.0)

    def made(cluster, **config):
        return Learner(toy_suite(), replace(SMALL, **config), seed=0, cluster=cluster)

    return made


def test_a_run_on_nodes_that_come_and_go_is_that_of_this_process(on_cluster):
    alone, cluster = Learner(toy_suite(), SMALL, seed=0), Cluster("a", "b")
    together = on_cluster(cluster)
    for iteration in range(5):
        one, other = (learner.iterate() for learner in (alone, together))
        assert one | {"simulator_calls": 0} == other | {"simulator_calls": 0}  # each actor asks about each task once
        if iteration == 1:
            cluster.machines |= Cluster("c", "odd").machines
            cluster.wrong["odd"] = "has numpy 1 (here 2)"
        if iteration == 2:
            del cluster.machines["a"]
    assert same(alone.state(), together.state())
    nodes = [seat.node.id for seat in together.crew.place.seats.values()]
    assert sorted(nodes) == ["b", "b", "c", "c"] and "a" in cluster.fired
    together.end()
    assert cluster.fired[-4:] == nodes


def test_there_are_no_more_actors_than_asked_for(on_cluster):
    learner = on_cluster(Cluster("a", "b"), actors=3)
    learner.iterate()
    assert len(learner.crew.place.seats) == 3


def test_a_cluster_without_room_says_so(on_cluster):
    learner = on_cluster(Cluster())
    learner.crew.place.terms = replace(learner.crew.place.terms, patience=-1.0)
    with pytest.raises(ClusterError, match="no node had an actor"):
        learner.iterate()


class Killed(Exception):
    """The driver's end."""


class Deadly(Cluster):
    """A cluster where at every answer an actor, a node or the driver may be killed."""

    def __init__(self, rng):
        super().__init__("a", "b")
        self.rng, self.kills = rng, {"actor": 0, "node": 0, "driver": 0}

    def answer(self, ticket):
        told = super().answer(ticket)
        draw = self.rng.random()
        if draw < 0.12:
            self.kills["actor"] += 1
            return Lost(died=True)
        if draw < 0.24:
            self.kills["node"] += 1
            del self.machines[str(self.rng.choice(list(self.machines)))]
            self.machines |= Cluster(f"node {self.count}").machines
        elif draw < 0.28:
            self.kills["driver"] += 1
            raise Killed
        return told


@pytest.mark.slow
def test_a_hundred_kills_of_actors_nodes_and_the_driver_change_nothing(on_cluster):
    """Each driver goes on from what the last one kept, and plays each episode once."""
    alone, deadly, state = Learner(toy_suite(), SMALL, seed=0), Deadly(np.random.default_rng(1)), None
    told, done = [alone.iterate() for _ in range(30)], []
    while len(done) < len(told):
        learner = on_cluster(deadly)
        if state is not None:
            learner.restore(state)
        try:
            while len(done) < len(told):
                done.append(learner.iterate())
                state = learner.state()
        except Killed:
            continue
    assert sum(deadly.kills.values()) >= 100 and min(deadly.kills.values()) >= 10
    assert same(state, alone.state()) and [one["steps"] for one in done] == [one["steps"] for one in told]


def test_an_actor_that_fails_names_its_node(on_cluster, monkeypatch):
    cluster = Cluster("a")
    monkeypatch.setattr(cluster, "call", lambda worker, *given: cluster._ticket(worker.node, Failed("no such id")))
    with pytest.raises(ActorLost, match="node host/a failed: no such id"):
        on_cluster(cluster).iterate()


def test_planners_that_only_nodes_have_are_known_by_name(on_cluster):
    learner = on_cluster(Cluster("a"), planner="fbgemm:cuda")
    assert learner.measures and learner.stage.measured_by == "fbgemm:cuda"
    assert learner.solver().card["planner"] == "fbgemm:cuda"
    with pytest.raises(SimulatorError, match="where the actors are"):
        Elsewhere("fbgemm:cuda").latency(learner.tasks[0], np.zeros(4))


def test_episodes_travel_as_arrays():
    """Arrays of Ray's store cannot be written to; an answer's can."""
    import pickle

    learner = Learner(toy_suite(), SMALL, seed=0)
    crew = learner.crew
    crew.send(Request(1, 0, learner.past[0]))
    episodes = crew.receive().episodes
    again = pickle.loads(pickle.dumps(episodes))
    assert same(vars(episodes), vars(again)) and all(column.dtype for column in vars(again).values())
    again.rewards[0, 0] = 1.0
    assert torch.equal(again.rewards[0, :1], torch.ones(1))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_processes_that_measure_take_cores_of_their_own(tmp_path):
    before = os.sched_getaffinity(0)
    try:
        first = cores.take(tmp_path)
        assert os.sched_getaffinity(0) == {first} and first == min(before)
        os.sched_setaffinity(0, before)
        if len(before) > 1:  # as another process would
            assert cores.take(tmp_path) == sorted(before)[1]
    finally:
        os.sched_setaffinity(0, before)
