"""Profiles of logs: ids in CSV and Parquet, read as they stream by."""

import gzip

import numpy as np
import pytest

from shard_gym.errors import CorruptFile, InvalidPool, UnknownName
from shard_gym.tables.files import load_pool
from shard_gym.torchrec.batches import Profiler
from shard_gym.torchrec.cells import Hashes, bags_of
from shard_gym.torchrec.logs import Log, profile_log
from shard_gym_agents.cli.logs import profile as main

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(tmp_path, name="log.parquet", **columns):
    path = tmp_path / name
    table = pyarrow.table(columns)
    if name.endswith(".parquet"):
        parquet.write_table(table, path, row_group_size=3)
        return path
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    lines = [",".join(columns), *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.csv.gz"])
def test_numbers_by_hand(tmp_path, name):
    path = written(tmp_path, name, user=[3, 3, None, 9, 3], item=[1, 2, 3, 4, 5], clicked=[0, 1, 0, 1, 0])
    profiler = profile_log(Log([path], ["item", "user"]), batch=2)  # the fifth sample is a smaller batch
    pool = profiler.pool(dim=8)
    assert (profiler.batches, pool.reference_batch, pool.name) == (2, 2, ("item", "user"))
    assert pool.rows.tolist() == [6, 10]
    assert pool.pooling.tolist() == [1, 0.75]
    assert profiler.features()["user"].distinct == 1  # row 3 twice, then row 9
    assert profiler.features()["item"].distinct == 2


def test_lists_and_missing_values(tmp_path):
    path = written(tmp_path, many=pyarrow.array([[1, 1, None], None, [], [7]], pyarrow.list_(pyarrow.int32())))
    pool = profile_log(Log([path], ["many"]), batch=4).pool()
    assert (pool.rows[0], pool.pooling[0], pool.distinct[0]) == (8, 0.75, 2)
    nested = pyarrow.array([["a", "b"], ["a"]], pyarrow.large_list(pyarrow.string()))
    ids, lengths, hashed = bags_of(nested, "auto", "c")
    assert (lengths.tolist(), hashed, len(set(ids.tolist())), ids[0] == ids[2]) == ([2, 1], True, 2, True)


def test_samples_stay_in_order_over_files_and_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("shard_gym.torchrec.logs.BLOCK", 64)  # bytes of CSV: some four samples
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 500, 101)
    paths = [
        written(tmp_path, "a.parquet", c=ids[:37].astype(np.int32)),
        written(tmp_path, "b.csv", c=ids[37:90]),
        written(tmp_path, "c.parquet", c=ids[90:]),
    ]
    expected = Profiler({"c": ["c"]})
    for start in range(0, 101, 10):
        expected.add({"c": (ids[start : start + 10], np.ones(len(ids[start : start + 10]), int))})
    found = profile_log(Log(paths, ["c"]), batch=10)
    assert found.features() == expected.features()
    assert found.pool() == expected.pool()


def test_hexadecimal_text_is_the_number_it_says(tmp_path):
    path = written(tmp_path, "log.csv", label=[0, 1, 0, 1], c=["0000000a", None, "ff", "10"])
    pool = profile_log(Log([path], ["c"], ids="hex"), batch=4).pool()
    assert (pool.rows[0], pool.pooling[0]) == (256, 0.75)
    pool = profile_log(Log([path], ["c"], ids="hex"), batch=4, rows={"c": 6}, outside="modulo").pool()
    assert (pool.rows[0], pool.distinct[0]) == (6, 2)  # 10 and 16 are 4, 255 is 3
    far = written(tmp_path, "far.csv", c=["ffffffffffffffff"])
    with pytest.raises(InvalidPool, match="9223372036854775807 is no row of 'c'"):
        profile_log(Log([far], ["c"], ids="hex"), batch=4)
    assert profile_log(Log([far], ["c"], ids="hex"), 4, rows={"c": 10}, outside="modulo").features()["c"].rows_seen == 6


def test_text_is_hashed(tmp_path):
    words = ["red", "green", "red", "a much longer colour", "blue", "", None, "red"]
    path = written(tmp_path, c=words)
    seen = profile_log(Log([path], ["c"]), batch=4).pool()
    assert seen.rows[0] == 5  # each text a row of its own; the empty one is one too, in Parquet
    assert seen.pooling[0] == pytest.approx(7 / 8)
    one = profile_log(Log([path], ["c"]), batch=8, rows={"c": 1}).pool()
    assert (one.rows[0], one.distinct[0]) == (1, 1)
    numbers = written(tmp_path, "numbers.parquet", c=[2**62, 5, 2**62])
    assert profile_log(Log([numbers], ["c"], ids="hash"), batch=3).pool().rows[0] == 2


def test_a_hash_depends_on_the_text_alone():
    def hashes(texts):
        return bags_of(pyarrow.array(texts), "hash", "c")[0].tolist()

    texts = [f"text {i}" for i in range(2000)] + ["12345678", "123456789" * 3]
    assert len(set(hashes(texts))) == len(texts)
    assert [hashes([text])[0] for text in texts[-5:]] == hashes(texts)[-5:]
    assert hashes(["shard"]) == hashes(["shard", "gym" * 20])[:1]
    spread = np.bincount(np.array(hashes(texts), np.uint64) % np.uint64(10), minlength=10)
    assert spread.min() > 150  # of 200


def test_numbers_of_hashes_are_those_of_a_dict():
    rng = np.random.default_rng(1)
    hashes, known = Hashes(), {}
    for size in (1, 5, 100, 3, 1000, 10):
        drawn = rng.integers(0, 700, size).astype(np.uint64)
        found = hashes.numbers(drawn)
        for value, number in zip(drawn.tolist(), found.tolist(), strict=True):
            assert known.setdefault(value, number) == number
    assert sorted(known.values()) == list(range(hashes.count))


def test_columns_may_share_a_table(tmp_path):
    path = written(tmp_path, clicked=["a", "b"], viewed=["b", "c"])
    pool = profile_log(Log([path], ["clicked", "viewed"]), 2, tables={"item": ["clicked", "viewed"]}).pool()
    assert (pool.name, pool.rows.tolist(), pool.pooling.tolist()) == (("item",), [3], [2])
    assert pool.distinct.tolist() == [3]
    for tables in ({"item": ["clicked"]}, {"a": ["clicked", "viewed"], "b": ["viewed"]}):
        with pytest.raises(InvalidPool, match="share out all columns"):
            profile_log(Log([path], ["clicked", "viewed"]), 2, tables=tables)


def test_ids_beyond_the_rows(tmp_path):
    path = written(tmp_path, c=[1, 12, 3])
    with pytest.raises(InvalidPool, match="feature 'c': 12 is no row of 'c', which has rows 0 to 9"):
        profile_log(Log([path], ["c"]), 3, rows={"c": 10})
    assert profile_log(Log([path], ["c"]), 3, rows={"c": 10}, outside="modulo").features()["c"].rows_seen == 4
    with pytest.raises(UnknownName, match="way of ids outside 'clip'"):
        profile_log(Log([path], ["c"]), 3, outside="clip")


def test_numbers_that_pandas_made_reals_of(tmp_path):
    assert profile_log(Log([written(tmp_path, c=[1.0, float("nan"), 3.0])], ["c"]), 3).pool().rows[0] == 4
    with pytest.raises(InvalidPool, match="'c' does not hold whole numbers"):
        profile_log(Log([written(tmp_path, c=[1.5])], ["c"]), 3)


def test_logs_that_are_refused(tmp_path):
    path = written(tmp_path, c=[1, 2])
    text = written(tmp_path, "text.csv", c=["1", "x"])
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("a,c\n1,2\n3\n")
    empty = written(tmp_path, "empty.parquet", c=pyarrow.array([], pyarrow.int64()))
    dates = written(tmp_path, "dates.parquet", c=pyarrow.array([True]))
    for log, error, message in (
        (Log([path], ["d"]), UnknownName, "unknown column 'd'; choose one of: c"),
        (Log([text], ["c"], ids="int"), CorruptFile, r"text.csv cannot be read: .*ids='hash' or 'hex'"),
        (Log([text], ["c"], ids="hex"), InvalidPool, "does not hold hexadecimal numbers"),
        (Log([path], ["c"], ids="hex"), InvalidPool, "ids='hex' reads text, but this is int64"),
        (Log([broken], ["c"]), CorruptFile, "broken.parquet cannot be read"),
        (Log([ragged], ["c"]), CorruptFile, "ragged.csv cannot be read.*Expected 2 columns, got 1"),
        (Log([empty], ["c"]), InvalidPool, "empty.parquet: no samples"),
        (Log([dates], ["c"]), InvalidPool, "'c' is bool: ids are whole numbers or text"),
    ):
        with pytest.raises(error, match=message):
            profile_log(log, 2)
    for told, message in (
        ({"paths": []}, "one file or more"),
        ({"paths": "log.csv"}, "a list of paths"),
        ({"columns": ["c", "c"]}, "columns of different names"),
        ({"ids": "octal"}, "kind of ids 'octal'"),
        ({"paths": ["log.xls"]}, "kind of log 'log.xls'"),
    ):
        with pytest.raises((InvalidPool, UnknownName), match=message):
            Log(**{"paths": [path], "columns": ["c"], **told})
    with pytest.raises(InvalidPool, match="one sample or more"):
        profile_log(Log([path], ["c"]), 0)


def test_a_bar_shows_how_far_a_long_read_is(tmp_path, monkeypatch, capsys):
    path = written(tmp_path, "log.csv", c=list(range(40)))
    profile_log(Log([path], ["c"]), 10)
    assert capsys.readouterr().err == ""  # no terminal, no bar
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("shard_gym.torchrec.logs.PATIENCE", 0.0)
    profile_log(Log([path], ["c"]), 10)
    assert capsys.readouterr().err.startswith(f"\r[{'#' * 30}] 100%, 10 samples, 0 s left")
    profile_log(Log([path], ["c"]), 10, progress=False)
    assert capsys.readouterr().err == ""


def test_the_command(tmp_path, capsys):
    lines = [f"{i % 2}\t{i % 7}\t{i % 5:08x}" for i in range(100)]
    log = tmp_path / "day_0.txt"
    log.write_text("\n".join(lines) + "\n")
    given = [str(log), "--columns", "f1,f2", "--batch", "10", "--out", str(tmp_path / "pool.json"), "--no-header"]
    assert main([*given, "--delimiter", "\t", "--rows", "f2=1000", "--dim", "32", "--ids", "hex"]) == 0
    pool = load_pool(tmp_path / "pool.json")
    assert (pool.name, pool.rows.tolist(), pool.dim.tolist()) == (("f1", "f2"), [7, 1000], [32, 32])
    assert (pool.reference_batch, pool.distinct.tolist(), pool.dtype) == (10, [7, 5], ("fp32", "fp32"))
    out = capsys.readouterr().out
    assert out.startswith("10 batches of 10 samples\n")
    assert "f2                            1,000     1.000     1.000     1.000          5.0" in out
    assert main([*given, "--delimiter", "\t", "--rows", "many"]) == 2
    assert "--rows is a number, or C1=10000" in capsys.readouterr().err
    assert main([str(tmp_path / "none.csv"), *given[1:]]) == 2
    assert "none.csv" in capsys.readouterr().err
