"""RLlib's algorithms on our vector environment, and the file that starts a cluster."""

import json
from pathlib import Path

import pytest

from tests.test_clients import example

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "ray"


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_rllib_trains_on_the_vector_environment(algorithm, capsys):
    pytest.importorskip("ray.rllib")
    trained, random, greedy = example("rllib_train").main(algorithm, "ShardGym-DLRM-10x2-Flat", seconds=0.1)
    assert random < greedy < 0 and -5 < trained < 0
    assert capsys.readouterr().out.startswith(f"{algorithm}, ")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_rllib_beats_random_devices(algorithm):
    pytest.importorskip("ray.rllib")
    trained, random, greedy = example("rllib_train").main(algorithm, "ShardGym-DLRM-20x4-Flat", seconds=60.0)
    assert trained - random > 0.5 * (greedy - random)


def test_the_cluster_file_is_what_ray_expects():
    ray, yaml = pytest.importorskip("ray"), pytest.importorskip("yaml")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = yaml.safe_load((EXAMPLES / "cluster.yaml").read_text())
    jsonschema.validate(config, schema)
    config["available_node_types"]["gpu"]["min_workers"] = "four"
    with pytest.raises(jsonschema.ValidationError, match="four"):
        jsonschema.validate(config, schema)
