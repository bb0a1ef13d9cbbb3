"""Figures that the papers published, as data; their pages put ours beside it. None where the print cannot be read."""

from __future__ import annotations

# DreamShard, Table 4: columns on each of 4 GPUs -> slowest all-to-all, both passes together, ms.
TABLE_4 = {
    (256, 256, 256, 256): 11.24,
    (192, 256, 320, 384): 14.18,
    (192, 192, 320, 320): 13.01,
    (128, 192, 320, 384): 14.03,
    (128, 128, 384, 384): 14.73,
    (64, 128, 384, 448): 16.11,
    (64, 64, 448, 448): 16.67,
    (64, 64, 320, 576): 16.93,
    (64, 64, 64, 832): 17.65,
}

# FlexShard, Table 6: elements a GPU sends in each direction -> ms of the global all-to-alls of a step.
FLEXSHARD = {
    972_424_960: 307, 450_510_848: 149, 297_697_024: 99,
    958_656_768: 308, 220_126_208: 80, 138_198_784: 49,
    466_826_496: 156, 311_369_728: 101, 246_077_440: 85,
    473_709_312: 155, 201_887_232: 72, 118_944_768: 45,
}  # fmt: skip

# TorchRec, pull request 2365 (2024), a GPU that is not named: columns (fp32) -> ms of one forward pass of FBGEMM's
# operator, 4 tables of 100,000 rows, 65,536 bags each of 9.5 ids on average.
TORCHREC_FORWARD = {
    4: 0.121216, 8: 0.134432, 16: 0.160608, 32: 0.174016,
    64: 0.310464, 128: 0.647872, 256: 1.45062, 512: 3.33741, 1024: 7.01872,
}  # fmt: skip

# AutoShard, Table 2, on 4 RTX 2080 Ti: balance and its deviation, speedup and its deviation, over five runs.
AUTOSHARD_TABLE_2 = {
    "w/o cost model": (0.613, 0.129, 1.420, 0.203),
    "w/o dim": (0.876, 0.015, 1.706, 0.056),
    "w/o rows": (0.878, 0.009, 1.702, 0.047),
    "w/o pooling": (0.459, 0.019, 1.271, 0.035),
    "w/o size": (0.870, 0.011, 1.683, 0.049),
    "w/o distribution": (0.843, 0.013, 1.688, 0.035),
    "autoshard": (0.886, 0.012, 1.712, 0.027),
}
# AutoShard, what the text says of its Figures 9 to 12, whose points are not printed.
AUTOSHARD_SAID = {
    "figure-8": "AutoShard's balance is 88.6 % ± 1.2, its speedup 1.712 ± 0.027; lookup-greedy is the best heuristic.",
    "figure-9": "1,000 samples take 9,783 s; after hours it is as good as lookup-greedy, far behind AutoShard.",
    "figure-10": "Up to 80 % unseen a balance of at least 80 % and a speedup of 1.6; at 100 % over 70 % and about 1.6.",
    "figure-11": "Balance falls with more tables for all; AutoShard is the best throughout, and its speedup rises.",
    "figure-12": "Above 80 % of balance after around 150 samples or 454 s; hundreds of tables are sharded in seconds.",
}
# The paper's public code as measured by others, one core: (tables, devices) -> seconds a plan.
AUTOSHARD_CODE_SECONDS = {"metasyn-80x8": 0.091, "metasyn-800x80": 5.8}

# DreamShard, Tables 6 and 7, 2080 Ti: (tables, GPUs, split) -> ms by strategy.
STRATEGIES = ("random", "size", "dim", "lookup", "size-lookup", "rnn", "dreamshard")
DREAMSHARD_TABLES_6_7: dict[tuple[int, int, str], tuple[float | None, ...]] = {
    (10, 4, "train"): (14.8, 13.0, 12.8, 11.9, 12.0, 13.3, 11.6),
    (10, 4, "test"): (13.6, 13.0, 12.6, 11.1, 11.2, 12.4, 10.9),  # size-lookup by its +21.4 %; the ms read 9.6
    (30, 4, "train"): (32.3, 31.0, 28.8, 26.1, 26.2, 30.7, 25.4),
    (30, 4, "test"): (31.8, 30.3, 28.4, 25.4, 25.5, 29.7, 24.6),
    (50, 4, "train"): (49.8, 49.7, None, 41.2, None, None, 40.4),
    (50, 4, "test"): (49.8, 49.8, None, 41.3, None, None, 40.4),
    (70, 4, "train"): (66.3, 67.8, None, 56.6, None, None, 55.2),
    (70, 4, "test"): (66.7, 69.4, None, 56.5, None, None, 55.2),
    (90, 4, "train"): (83.0, None, None, None, None, None, 70.0),
    (90, 4, "test"): (82.3, None, None, None, None, None, 69.4),
    (10, 2, "train"): (17.9, 16.4, 16.5, 14.8, 14.7, 17.0, 15.1),
    (10, 2, "test"): (16.5, 16.0, 16.0, 13.9, 13.7, 16.0, 13.9),
    (20, 2, "train"): (31.6, 30.8, 30.6, 27.4, 27.3, 30.6, 27.1),
    (20, 2, "test"): (29.9, 29.3, 28.8, 26.3, 26.0, 28.8, 25.8),
    (30, 2, "train"): (44.6, 43.4, 43.0, 39.5, 39.3, 43.1, 39.3),
    (30, 2, "test"): (43.7, 42.6, 42.1, 38.9, 38.5, 42.4, 38.6),
    (40, 2, "train"): (58.7, 57.1, 56.2, 53.0, 52.5, 57.5, 52.3),
    (40, 2, "test"): (58.6, 56.9, 56.9, 52.5, 52.4, 56.5, 51.9),
    (50, 2, "train"): (72.2, 71.2, 70.0, 66.0, 65.5, 71.5, 65.5),
    (50, 2, "test"): (72.7, 70.6, 70.7, 65.7, 65.6, 70.8, 65.5),
}

# DreamShard, Tables 8 to 10, test tasks: trained on (tables, GPUs) -> ms on each target; "own": trained on the target.
TARGETS = {
    "table-8": ((20, 4), (40, 4), (60, 4), (80, 4), (100, 4)),
    "table-9": ((10, 2), (20, 2), (30, 2), (40, 2), (50, 2)),
    "table-10": ((10, 4), (20, 4), (30, 4), (40, 4), (50, 4)),
}
Transfer = dict[tuple[int, int] | str, tuple[float | None, ...]]
DREAMSHARD_TRANSFER: dict[str, Transfer] = {
    "table-8": {
        (20, 4): (None, 32.5, 47.8, 62.8, 77.9),
        (40, 4): (17.6, None, 47.8, 62.7, 78.0),
        (60, 4): (17.7, 32.5, None, 63.1, 78.2),
        (80, 4): (17.6, 32.4, 47.8, None, 78.1),
        (100, 4): (17.7, 32.7, 48.1, 63.2, None),
        "own": (17.6, 32.4, 47.9, 62.7, 77.8),
    },
    "table-9": {
        (10, 4): (14.1, 26.2, 38.7, 52.2, 65.3),
        (20, 4): (13.9, 25.8, 38.1, 51.4, 64.5),
        (30, 4): (14.1, 26.1, 38.5, 52.0, 65.2),
        (40, 4): (14.3, 26.2, 38.6, 52.0, 65.1),
        (50, 4): (14.3, 26.3, 38.6, 52.1, 65.3),
        "own": (13.9, 25.8, 38.6, 51.9, 65.5),
    },
    "table-10": {
        (10, 2): (10.8, 18.3, 25.6, 33.8, 41.7),
        (20, 2): (10.6, 17.8, 25.0, 32.9, 40.7),
        (30, 2): (10.9, 18.0, 25.0, 32.9, 40.7),
        (40, 2): (10.8, 17.8, 24.8, 32.6, 40.2),
        (50, 2): (10.7, 17.6, 24.6, 32.3, 40.0),
        "own": (10.9, 17.6, 24.6, 32.4, 40.4),
    },
}

# DreamShard, Table 11, 4 GPUs: (tables, split) -> ms. "w/o row" cannot be read; where one number stands for
# "w/o cost" and "w/ RNN", it is far above DreamShard's and taken for the former.
ABLATED = ("w/o dim", "w/o pooling", "w/o size", "w/o distribution", "w/o cost", "w/ RNN", "dreamshard")
DREAMSHARD_TABLE_11: dict[tuple[int, str], tuple[float | None, ...]] = {
    (10, "train"): (11.8, 12.9, 11.5, 11.8, 13.4, None, 11.6),
    (10, "test"): (10.9, 12.4, 10.7, 11.0, 12.4, None, 10.9),
    (20, "train"): (18.5, 21.6, 18.3, 18.8, 22.0, 18.7, 18.6),
    (20, "test"): (17.7, 20.4, 17.5, 18.0, 20.8, 17.8, 17.6),
    (30, "train"): (25.3, 29.6, 25.2, 25.7, 29.8, 25.2, 25.4),
    (30, "test"): (24.7, 29.2, 24.5, 24.9, 29.0, 24.7, 24.6),
    (40, "train"): (33.1, 37.9, 33.2, 32.9, 38.1, None, 32.8),
    (40, "test"): (33.3, 37.9, 32.9, 32.5, 37.2, 32.3, 32.4),
    (50, "train"): (40.8, 46.3, 40.8, 40.6, 47.5, 40.5, 40.4),
    (50, "test"): (40.9, 47.2, 40.6, 40.5, 46.3, 40.5, 40.4),
    (60, "train"): (48.5, 54.3, 47.8, 48.0, 53.9, 47.5, 47.6),
    (60, "test"): (48.9, 54.8, 48.0, 48.1, 54.7, 47.7, 47.9),
    (70, "train"): (56.0, 62.9, 55.5, 55.3, 62.5, None, 55.2),
    (70, "test"): (56.1, 62.8, 55.5, 55.6, 58.3, None, 55.2),
    (80, "train"): (64.2, 70.3, 62.6, 62.9, 71.4, 62.5, 62.2),
    (80, "test"): (64.2, 71.0, 62.9, 63.0, 71.1, 62.1, 62.7),
    (90, "train"): (71.8, 79.1, 70.7, 70.4, 79.8, 70.8, 70.0),
    (90, "test"): (70.8, 77.5, 69.6, 70.1, 79.0, 70.2, 69.4),
    (100, "train"): (79.6, 87.6, 78.7, 78.9, 89.1, 78.6, 78.4),
    (100, "test"): (78.1, 86.2, 78.0, 78.0, 87.7, 77.8, 77.8),
}
