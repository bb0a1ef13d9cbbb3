"""The page of Ray, made of parts: what it says of kills, of rates and of the driver."""

from benchmarks.pages import ray_page

KILLS = {"kills": 25, "lost": 0, "twice": 0, "orphans": 1, "failed": 0, "different": False, "litter": []}


def test_the_page_sums_kills_and_compares_rates():
    victims = {"worker": 8, "node": 10, "driver": 7}
    rates = {"here 1": [40.0, 44.0, 42.0], "ray 1": [40.0, 42.0, 41.0], "here 2": [80.0] * 3, "ray 2": [82.0] * 3}
    looks = {"done": [10, 20, 30], "wall": [9.0, 9.5, 10.0], "cpu": [1.0, 1.1, 1.2], "bytes": [75.04e6, 75.2e6, 75.3e6]}
    parts = [
        {"case": "kills measure", "victims": victims, **KILLS},
        {"case": "kills measure", "victims": victims, **KILLS, "different": True},
        {"case": "measuring", "rates": rates, "shards": 600, "seconds": 0.02},
        {"case": "evaluating", "seconds": {"here": [0.02, 0.01, 0.03], "ray": [0.021, 0.02, 0.09]}},
        {"case": "rows", "rows": 30, **looks},
    ]
    text = ray_page.page(parts)
    assert "| measure | 50 | 16 | 20 | 14 | 0 | 0 | 2 | 0 | 1 |" in text
    assert "| 1 | 42.00 (40.00 to 44.00) | 41.00 (40.00 to 42.00) | +2.4% |" in text
    assert "make 2.00 times the shards of one, and 1.02 times those of two workers here" in text
    assert "costs 20.00 ms" in text and "difference is +1.00 ms, +1.0% of a run of 100 ms" in text
    assert "medians of 3 turns" in text and "differs by up to 20.00 ms" in text
    assert "20 rows a second, 10000 µs" in text and "75.0, 75.2, 75.3." in text
