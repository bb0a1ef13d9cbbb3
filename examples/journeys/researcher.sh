#!/usr/bin/env bash
# A researcher's journey: a policy of your own, trained, ranked beside others, packed as an entry, and on an HTML page.
#
#     pip install torch && pip install "shard_gym-*.whl[sb3]" pytest
#     bash researcher.sh                 # some minutes; writes the folder my_agent where it is called
#
# ppo.py beside this file is the policy: put yours in its place.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

shard-gym new-agent my_agent    # a package: two agents to begin with, a test, a card
cp "$here/ppo.py" my_agent/my_agent/
cd my_agent
python -m pytest -q             # the package as it was written works
python -m my_agent.ppo          # trains your policy

hash=$(sha256sum my_agent/ppo.zip | cut -d' ' -f1) # the card says whose runs they are: fill in authors and hardware too
sed -i.old -e "s/my_agent:Policy/my_agent.ppo:Policy/" -e "s/^checkpoints = .*/checkpoints = [\"$hash\"]/" \
    -e "s/^training = .*/training = \"PPO of Stable-Baselines3, python -m my_agent.ppo\"/" card.toml

shard-gym leaderboard --suite core-60x4 --agents random,lookup-greedy,cost-greedy \
    --agent my_agent:Policy --agent my_agent.ppo:Policy --page --out run
shard-gym submit run --card card.toml --out entry
shard-gym validate entry --strict

echo "Look at it: python -m webbrowser -t my_agent/run/leaderboard.html"
