"""Work in pieces: parts, batches, what comes of workers that die, and words of errors."""

import argparse
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest

from shard_gym.errors import ClusterError, MissingDependency, NodeRefused
from shard_gym.work import cluster, crew, facts
from shard_gym.work.cluster import Cluster
from shard_gym.work.crew import Crew
from shard_gym.work.parts import WHOLE, Part, add_places
from shard_gym.work.pieces import MOST, Pace, Piece, Roll, left
from shard_gym.work.terms import Lane, Node, Terms
from tests.work_helpers import Dies, Here, node

KEYS = [Piece.of({"number": i}, i).key for i in range(1_000)]


def pieces(count):
    return [Piece(str(i), i) for i in range(count)]


# --- parts and pieces ---


def test_parts_are_disjoint_and_together_everything():
    taken = [[key for key in KEYS if Part(n, 7).takes(key)] for n in range(1, 8)]
    assert sorted(key for part in taken for key in part) == sorted(KEYS)
    assert all(110 < len(part) < 180 for part in taken)
    assert [key for key in reversed(KEYS) if Part(3, 7).takes(key)] == taken[2][::-1]
    assert all(WHOLE.takes(key) for key in KEYS)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1/9999999"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write 1/4 for the first of four"):
        Part.parse(text)


def test_flags_of_places():
    parser = argparse.ArgumentParser()
    add_places(parser)
    none, local, there = (parser.parse_args(words) for words in ([], ["--ray"], ["--ray", "host:6379"]))
    assert none.part == WHOLE and none.ray is None and local.ray == "local" and there.ray == "host:6379"
    assert str(parser.parse_args(["--part", "2/5"]).part) == "2/5"


def test_a_key_follows_from_what_decides_it():
    assert Piece.of({"a": 1, "b": 2}, "x") == Piece.of({"b": 2, "a": 1}, "x") != Piece.of({"a": 1, "b": 3}, "x")


def test_what_is_left_is_of_the_part_and_not_done():
    both = [list(left(pieces(50), {"3", "4"}, Part(n, 2))) for n in (1, 2)]
    assert sorted(int(piece.key) for part in both for piece in part) == [i for i in range(50) if i not in (3, 4)]


def test_a_batch_that_killed_its_worker_comes_again_piece_by_piece_and_last():
    roll = Roll(pieces(6))
    first, second = roll.batch(3), roll.batch(2)
    assert roll.blame(first) == []
    roll.back(second)
    assert [[p.payload for p in roll.batch(5)] for _ in range(5)] == [[3, 4], [5], [0], [1], [2]]
    assert not roll and roll.batch(5) == []


def test_a_piece_that_killed_two_workers_alone_is_given_up():
    roll = Roll(pieces(2))
    assert roll.blame(roll.batch(2)) == []
    assert roll.blame(roll.batch(2)) == [] and [p.payload for p in roll.batch(1)] == [1]
    assert [p.payload for p in roll.blame(roll.batch(1))] == [0] and not roll


def test_a_roll_reads_its_list_no_further_than_it_must():
    read = []
    roll = Roll(Piece(str(i), read.append(i)) for i in range(100))
    roll.batch(10)
    assert len(read) == 10 and roll and len(read) == 11


def test_a_list_may_wait_for_rows():
    rows = []

    def each():  # one more piece than there are rows
        for i in range(5):
            while len(rows) < i:
                yield None
            yield Piece(str(i), i)

    lane = Lane.of(each(), lambda key, row: rows.append(row), lambda: None)
    Crew(Here(node(1), node(2)), Squares, Terms(), lane).run()
    assert rows == [0, 1, 4, 9, 16]


def test_batches_grow_until_they_take_the_time_they_should():
    pace = Pace()
    sizes = []
    for _ in range(6):
        pace.saw(pace.most, 0.001 * pace.most, aim=0.2)
        sizes.append(pace.most)
    assert sizes == [4, 16, 64, 200, 200, 200]
    pace.saw(200, 2.0, aim=0.2)
    assert pace.most == 20
    for _ in range(6):
        pace.saw(pace.most, 0.0, aim=0.2)
    assert pace.most == MOST


# --- the crew ---


@dataclass
class Squares:
    """Squares numbers; dies of those that are told, on nodes that are told."""

    slot: object
    deadly: Counter = field(default_factory=Counter)
    kind: str = ""

    def do(self, payload):
        if self.deadly[payload] > 0:
            self.deadly[payload] -= 1
            raise Dies
        return payload**2

    def about(self):
        return {"kind": self.kind}


def worked(hands, count=100, make=Squares, **terms):
    kept = []
    Crew(hands, make, Terms(**terms), Lane.of(pieces(count), lambda *row: kept.append(row), lambda: None)).run()
    assert len(kept) == len(dict(kept))
    return dict(kept)


SQUARES = {str(i): i**2 for i in range(100)}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(crew, "POLL_SECONDS", 0.0)


def test_all_pieces_are_done_once_and_all_workers_end():
    hands = Here(node(1, cpus=2), node(2))
    assert worked(hands) == SQUARES
    assert len(hands.asked["hired"]) == 3 == len(hands.fired)


def test_no_more_workers_than_are_asked_for():
    hands = Here(node(1, cpus=8))
    worked(hands, workers=2, cpus=1)
    assert len(hands.asked["hired"]) == 2


def test_workers_of_a_host_have_numbers_of_their_own():
    one, other = Node("a", "h/a", "h", {"CPU": 2.0}), Node("b", "h/b", "h", {"CPU": 1.0})
    slots = []
    worked(Here(one, other), make=lambda slot: slots.append(slot) or Squares(slot))
    assert sorted(slot.number for slot in slots) == [0, 1, 2]


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost():
    deadly = Counter({7: 1, 30: 1, 31: 1})
    assert worked(Here(node(1), node(2)), make=lambda slot: Squares(slot, deadly)) == SQUARES
    assert not +deadly


def test_a_piece_that_always_kills_becomes_a_row_that_says_so():
    deadly = Counter({7: 99})
    kept = worked(Here(node(1)), make=lambda slot: Squares(slot, deadly), lost=lambda payload: f"died of {payload}")
    assert kept == SQUARES | {"7": "died of 7"}


def test_nodes_come_and_go():
    hands = Here(node(1))
    hands.rounds = [lambda: None] * 2 + [lambda: hands.up.append(node(2)), lambda: hands.up.pop(0)]
    hands.rounds += [lambda: hands.up.append(node(3))]
    assert worked(hands) == SQUARES
    assert {hands.hosts[id(hand)].id for hand in hands.asked["hired"]} >= {"id1", "id2"}


def test_a_later_node_that_differs_is_left_out(capsys):
    hands = Here(node(1), wrong={"host2/id2": "has numpy 1 (here 2): install the same versions on all nodes"})
    hands.rounds = [lambda: hands.up.append(node(2))]
    assert worked(hands) == SQUARES
    assert {hands.hosts[id(hand)].id for hand in hands.asked["hired"]} == {"id1"}
    assert "node host2/id2 has numpy 1 (here 2): install" in capsys.readouterr().err


def unable(slot):
    if slot.host == "host2":
        raise MissingDependency("run pip install fbgemm-gpu")
    return Squares(slot)


def test_a_first_node_where_no_worker_can_begin_ends_the_work():
    with pytest.raises(ClusterError, match="node host2/id2: run pip install fbgemm-gpu"):
        worked(Here(node(1), node(2)), make=unable)


def test_a_later_node_where_no_worker_can_begin_is_left_out(capsys):
    hands = Here(node(1))
    hands.rounds = [lambda: hands.up.append(node(2))]
    assert worked(hands, make=unable) == SQUARES
    assert "node host2/id2: run pip install fbgemm-gpu; it is left out" in capsys.readouterr().err


class Odd(Squares):
    def do(self, payload):
        raise ZeroDivisionError("odd")


def test_what_a_worker_does_not_expect_ends_the_work_and_names_the_node():
    with pytest.raises(ClusterError, match="node host1/id1: ZeroDivisionError: odd"):
        worked(Here(node(1)), make=Odd)


class Stillborn(Squares):
    def __init__(self, slot):
        if slot.host == "host1":
            raise Dies
        super().__init__(slot)


def test_a_node_whose_workers_all_die_at_once_is_left_out(capsys):
    assert worked(Here(node(1), node(2)), 3_000, make=Stillborn, batch_seconds=1e-9).keys() == {
        str(i) for i in range(3_000)
    }
    assert "node host1/id1: 5 workers died there and did nothing; it is left out" in capsys.readouterr().err
    with pytest.raises(ClusterError, match="5 workers died there"):
        worked(Here(node(1)), make=Stillborn)


def test_without_nodes_it_gives_up_and_says_what_to_do():
    with pytest.raises(ClusterError, match="no node has done anything for 0 s: what was done is kept"):
        worked(Here(), patience=0.0)


def test_nothing_is_begun_after_the_end_of_time():
    assert worked(Here(node(1)), stop_at=0.0) == {}


def test_kinds_of_nodes_have_lists_of_their_own():
    kept = {"host1": {}, "host2": {}}
    lanes = {host: Lane.of(pieces(20), rows.__setitem__, lambda: None) for host, rows in kept.items()}

    def admit(slot, about):
        if slot.host == "host3":
            raise NodeRefused(f"node {slot.node} is too noisy")
        return lanes[slot.host]

    Crew(Here(node(1), node(2), node(3)), Squares, Terms(admit=admit), None).run()
    assert kept == {host: {str(i): i**2 for i in range(20)} for host in kept}
    with pytest.raises(NodeRefused, match="host3/id3 is too noisy"):
        Crew(Here(node(3)), Squares, Terms(admit=admit), None).run()


def test_rows_are_settled_after_they_are_kept():
    seen = []
    lane = Lane.of(pieces(10), lambda key, row: seen.append(key), lambda: seen.append("settled"))
    Crew(Here(node(1)), Squares, Terms(), lane).run()
    assert seen[-1] == "settled" and len(seen) > 10


# --- words ---


def test_facts_that_differ_are_told():
    here = {"Python": "3.11.8", "ray": "2.60.0", "shard_gym": "aa", "shard_gym_agents": "bb"}
    there = here | {"Python": "3.12.1", "shard_gym": facts.ABSENT}
    told = facts.difference(here, there)
    assert told == "has Python 3.12.1 (here 3.11.8), shard_gym none (here aa): install the same versions on all nodes"
    assert facts.difference(here, here | {"module fbgemm_gpu": "there"}) == ""
    assert "lacks fbgemm_gpu" in facts.difference(here, here | {"module fbgemm_gpu": facts.ABSENT})


def test_facts_change_with_any_file_of_a_package(tmp_path, monkeypatch):
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "weights.safetensors").write_bytes(b"1")
    monkeypatch.syspath_prepend(tmp_path)
    told = [facts.tell(("some_package",), ("some_module",))]
    (package / "built.so").write_bytes(b"x")
    told.append(facts.tell(("some_package",), ("some_module",)))
    (package / "weights.safetensors").write_bytes(b"2")
    told.append(facts.tell(("some_package",), ("some_module",)))
    assert told[0] == told[1] != told[2]
    assert told[0]["module some_module"] == facts.ABSENT


def test_without_ray_the_command_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"run pip install 'ray>=2.60,<3'"), Cluster.joined():
        pass


def test_an_address_that_does_not_answer_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"nothing that is Ray answers at {address} within 0 s"):
            cluster._wait_for(address, 0.0)
    with pytest.raises(ClusterError, match="soon is no address of a Ray cluster"):
        cluster._wait_for("soon", 0.0)
