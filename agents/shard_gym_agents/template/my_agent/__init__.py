"""Agents for ShardGym: `my_agent:Greedy`, a rule, and `my_agent:Policy`, which learns."""

from my_agent.greedy import Greedy
from my_agent.policy import Policy

__all__ = ["Greedy", "Policy"]
