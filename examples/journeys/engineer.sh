#!/usr/bin/env bash
# An engineer's journey: from a CSV file of tables to a plan, a picture of it, and a file for TorchRec.
#
#     pip install shard_gym-*.whl
#     bash engineer.sh tables.csv        # less than a minute; writes to the folder it is called in
#
# Put your own machine after --hardware, by name or as a TOML file: docs/planning.md.
set -euo pipefail
tables=${1:-tables.csv}
task=(--tables "$tables" --hardware dgx-h100 --optimizer rowwise_adagrad)

shard-gym solve "${task[@]}" --agent auto --budget 1 --out plan.json # the plan: a second of search
shard-gym stats plan.json "${task[@]}" --top 5                       # what it does on each device
shard-gym show plan.json "${task[@]}" --out plan.svg                 # a picture of it
shard-gym export plan.json "${task[@]}" --out sharding_plan.json     # what TorchRec takes

echo "In training: plan = from_named_json(open('sharding_plan.json').read())  # of shard_gym.torchrec.stored"
