"""Each sampled answer goes to one request, whatever clients break off, retry and receive, and in
whatever order: what is trained is what was delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.deliveries import Deliveries

KEY = (1, "node", True)
# ask: a new agent's request. retry: the same, from the agent whose connection broke last; marked: a
# retry that says so, while its first connection is not known to be gone. vanish: a connection is
# gone and nobody noticed yet. leave: it is noticed. Each takes the oldest it applies to.
STEPS = ("ask", "marked", "vanish", "leave", "finish", "fail", "deliver", "expire", "end")


@dataclass(eq=False)
class Connection:
    """gone: the client has closed it. left: the proxy has noticed."""

    call: str = ""
    gone: bool = False
    left: bool = False
    displaced: bool = False
    delivered: bool = False

    def is_here(self) -> bool:
        return not self.gone


@dataclass
class World:
    """The proxy's bookkeeping around `Deliveries`, and what clients saw. Mutated by `step`."""

    deliveries: Deliveries[Connection] = field(default_factory=Deliveries)
    connections: list[Connection] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    undelivered: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)

    def step(self, name: str) -> None:
        match name:
            case "ask":
                self.ask(is_retry=False)
            case "marked":
                self.ask(is_retry=True)
            case "vanish":
                for connection in self.open()[:1]:
                    connection.gone = True
            case "leave":
                for connection in [c for c in self.connections if not c.left][:1]:
                    connection.gone = True
                    self.leave(connection)
            case "finish" | "fail":
                for call in self.running()[:1]:
                    self.finish(call, whole=name == "finish")
            case "deliver":
                for connection in self.open():
                    if self.state[connection.call] == "committed" and not connection.displaced:
                        self.deliver(connection)
                        break
            case "expire":
                for call in list(self.state):
                    self.give_up(call)
            case "end":
                for call in self.running():
                    self.deliveries.stop(call)

    def ask(self, *, is_retry: bool) -> None:
        connection = Connection()
        found = self.deliveries.find(KEY, is_retry=is_retry)
        if found is None:
            found = f"c{len(self.state)}"
            self.state[found] = "running"
            self.deliveries.open(found, KEY, connection)
        else:
            assert self.state[found] in ("running", "committed")
            assert self.delivered.get(found, 0) == 0, "a delivered answer was given again"
            assert found not in self.undelivered, "an answer that was given up was given"
            before = self.deliveries.attach(found, connection)
            if before is not None:
                free = self.deliveries.find(KEY, is_retry=False)
                assert before.gone or (is_retry and free is None), "an agent lost its call"
                before.displaced = True
        connection.call = found
        self.connections.append(connection)

    def leave(self, connection: Connection) -> None:
        connection.left = True
        self.deliveries.leave(connection.call, connection, delivered=False)

    def deliver(self, connection: Connection) -> None:
        assert self.deliveries.has(connection.call, connection)
        assert connection.call not in self.undelivered
        self.deliveries.leave(connection.call, connection, delivered=True)
        connection.left = connection.delivered = True
        self.delivered[connection.call] = self.delivered.get(connection.call, 0) + 1

    def finish(self, call: str, *, whole: bool) -> None:
        self.state[call] = "committed" if whole else "failed"
        if not whole:
            self.deliveries.failed(call)
        elif not self.deliveries.committed(call):
            self.undelivered.add(call)
        else:
            assert call not in self.given_up, "nobody would ever give it up again"

    def give_up(self, call: str) -> None:
        match self.deliveries.give_up(call):
            case "undelivered":
                self.undelivered.add(call)
            case "stop":
                self.given_up.add(call)

    def open(self) -> list[Connection]:
        return [c for c in self.connections if not c.left and not c.gone]

    def running(self) -> list[str]:
        return [call for call, state in self.state.items() if state == "running"]

    def settle(self) -> None:
        """Everything ends: calls finish, who is there gets its answer, the rest is given up."""
        for call in self.running():
            self.finish(call, whole=True)
        for connection in self.open():
            if self.state[connection.call] == "committed" and not connection.displaced:
                self.deliver(connection)
        for connection in [c for c in self.connections if not c.left]:
            self.leave(connection)
        for call in self.state:
            self.give_up(call)

    def check(self) -> None:
        """The law, once everything has ended."""
        committed = {call for call, state in self.state.items() if state == "committed"}
        targets = committed - self.undelivered
        assert self.delivered == dict.fromkeys(targets, 1)
        for connection in self.connections:
            if not connection.gone and not connection.displaced:
                assert connection.delivered or self.state[connection.call] == "failed"
        for call in self.state:
            assert self.deliveries.find(KEY, is_retry=True) is None, call


def lived(steps: tuple[str, ...] | list[str]) -> World:
    world = World()
    for name in steps:
        world.step(name)
    world.settle()
    world.check()
    return world


@pytest.mark.parametrize("first", STEPS)
def test_every_short_interleaving_delivers_each_answer_once(first: str) -> None:
    for rest in product(STEPS, repeat=4):
        lived(("ask", first, *rest))


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_any_interleaving_delivers_each_answer_once(steps: list[str]) -> None:
    lived(steps)


@given(st.lists(st.sampled_from(("vanish", "leave", "finish")), max_size=3, unique=True))
def test_a_retry_that_comes_in_time_is_sampled_no_second_time(before: list[str]) -> None:
    broken = [*before] if "leave" in before or "vanish" in before else [*before, "leave"]
    world = lived(["ask", *broken, "ask", "finish", "deliver"])
    assert list(world.state) == ["c0"]


@given(st.lists(st.just("ask"), min_size=2, max_size=6))
def test_equal_requests_of_agents_that_are_there_are_calls_of_their_own(asked: list[str]) -> None:
    world = lived([*asked, "finish", "ask", "deliver", "ask"])
    assert len(world.state) == len(asked) + 2
