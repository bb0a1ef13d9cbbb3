"""A cluster in this process, whose nodes and workers die when they are told to."""

from shard_gym.work.cluster import _Hand
from shard_gym.work.terms import Lost, Node


class Dies(BaseException):
    """The end of a worker's process."""


def node(number, cpus=1):
    return Node(f"id{number}", f"host{number}/id{number}", f"host{number}", {"CPU": float(cpus)})


class Here:
    """Hands of a crew without Ray: what is asked is done when the answer is taken."""

    def __init__(self, *nodes, wrong=None):
        self.up, self.wrong = list(nodes), wrong or {}
        self.hosts, self.asked, self.calls, self.fired = {}, {}, 0, []
        self.rounds = []  # functions called before each look at what is ready

    def nodes(self):
        return self.up

    def checking(self, node):
        return self._ticket(lambda: self.wrong.get(node.name, ""))

    def hired(self, node, terms):
        hand = _Hand()
        self.hosts[id(hand)] = node
        self.asked.setdefault("hired", []).append(hand)
        return hand

    def call(self, worker, method, *given):
        self.calls += 1
        return self._ticket(lambda: self._done(worker, method, given))

    def fire(self, worker):
        self.fired.append(worker)

    def ready(self, tickets, seconds):
        if self.rounds:
            self.rounds.pop(0)()
        return tickets

    def answer(self, ticket):
        if callable(self.asked[ticket]):
            self.asked[ticket] = self.asked[ticket]()
        return self.asked[ticket]

    def _ticket(self, work):
        self.calls += 1
        self.asked[self.calls] = work
        return self.calls

    def _done(self, worker, method, given):
        if worker in self.fired or self.hosts[id(worker)] not in self.up:
            return Lost(died=False)
        try:
            return getattr(worker, method)(*given)
        except Dies:
            self.fired.append(worker)
            return Lost(died=True)
