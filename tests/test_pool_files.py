import json
import string
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shard_gym.errors import CorruptFile, InvalidPool, MissingDependency, ShardGymError, UnknownName
from shard_gym.tables.files import COLUMNS, load_pool, save_pool
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import ELEMENT_BYTES, NUM_BINS, TablePool, make_pool

SUFFIXES = (".json", ".csv", ".parquet")
per_example = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def pools(draw):
    """Any pool at all: odd names, float32 shares of many digits, tables nobody uses."""
    n = draw(st.integers(1, 5))
    dim = draw(st.lists(st.integers(1, 2**31 - 1), min_size=n, max_size=n))
    rows = [draw(st.integers(1, (2**53 - 1) // (12 * d))) for d in dim]  # what fits 2**53 bytes
    weights = draw(st.lists(st.integers(0, 10**6), min_size=n * NUM_BINS, max_size=n * NUM_BINS))
    weights = np.array(weights, float).reshape(n, NUM_BINS)
    shares = (weights / np.maximum(weights.sum(axis=1), 1)[:, None]).astype(np.float32)
    pooling = draw(st.lists(st.floats(0, 1e6, width=32), min_size=n, max_size=n))
    pooling = np.where(weights.sum(axis=1) > 0, pooling, 0)  # without a histogram, no lookups
    batch = draw(st.integers(1, 2**32))
    lookups = np.rint(pooling * batch).astype(int)
    return TablePool(
        rows=rows,
        dim=dim,
        pooling=pooling,
        distinct=[draw(st.integers(min(m, 1), min(r, m))) for r, m in zip(rows, lookups.tolist(), strict=True)],
        uses=shares,
        accesses=shares[:, ::-1],
        name=draw(st.lists(st.text(), min_size=n, max_size=n)),
        dtype=draw(st.lists(st.sampled_from(sorted(ELEMENT_BYTES)), min_size=n, max_size=n)),
        reference_batch=batch,
        bags=draw(st.sampled_from([1.0, 2.0, 1 / 3])) if max(dim) < 2**30 else 1.0,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(pool=pools())
@per_example
def test_what_is_saved_loads_back_equal(tmp_path, suffix, pool):
    path = tmp_path / f"pool{suffix}"
    save_pool(pool, path)
    assert load_pool(path) == pool
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing beside it


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bags_are_a_column_where_a_table_has_other_than_one(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    save_pool(make_pool([10, 20], bags=[1, 2.5]), path)
    assert load_pool(path).bags.tolist() == [1, 2.5] and b"bags" in path.read_bytes()
    save_pool(make_pool([10, 20]), path)
    assert load_pool(path).bags.tolist() == [1, 1] and b"bags" not in path.read_bytes()


@pytest.mark.parametrize("name", ["a\r\nb", "\r", '"', "a,b", " padded ", "", "\ufeff", "\x00", "é漢🙂"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_survive(tmp_path, suffix, name):
    pool = make_pool([10, 20], name=(name, "other"))
    save_pool(pool, tmp_path / f"p{suffix}")
    assert load_pool(tmp_path / f"p{suffix}").name == (name, "other")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_metasyn_survives(tmp_path, suffix):
    pool = load_metasyn()
    save_pool(pool, tmp_path / f"p{suffix}")
    assert load_pool(tmp_path / f"p{suffix}") == pool


@given(st.lists(st.floats(0, 2.0**36, width=32), min_size=1, max_size=40))
@example([float(np.nextafter(np.float32(0), np.float32(1))), 2.0**36])
@per_example
def test_every_float32_survives_as_text(tmp_path, values):
    pool = make_pool(np.ones(len(values)), 4, values)
    save_pool(pool, tmp_path / "p.csv")
    assert load_pool(tmp_path / "p.csv") == pool


def test_text_is_short(tmp_path):
    save_pool(make_pool([100], pooling=0.1), tmp_path / "p.csv")
    assert "0.1," in (tmp_path / "p.csv").read_text()


def test_missing_columns_get_the_defaults_of_make_pool(tmp_path):
    expected = make_pool([5, 1_000_000])
    (tmp_path / "p.csv").write_text("rows\n5\n1e6\n")
    (tmp_path / "p.json").write_text('{"tables": [{"rows": 5}, {"rows": 1000000}]}')
    pyarrow = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"rows": [5, 1_000_000]})
    pyarrow.write_table(table, tmp_path / "p.parquet")
    for suffix in SUFFIXES:
        loaded = load_pool(tmp_path / f"p{suffix}")
        assert loaded == expected
        assert (loaded.dim[0], loaded.pooling[0], loaded.dtype[0], loaded.reference_batch) == (
            16,
            1,
            "fp32",
            65536,
        )


def test_a_hand_written_spreadsheet_is_read(tmp_path):
    path = tmp_path / "P.CSV"
    lines = [
        "\ufeffname, rows , dim,pooling, dtype",
        "user,5e6, 64,1, fp32",
        "",
        "clicks, 800000,32,24.5,int8",
    ]
    path.write_text("\r\n".join(lines), encoding="utf-8", newline="")
    expected = make_pool([5_000_000, 800_000], [64, 32], [1, 24.5], dtype=("fp32", "int8"), name=("user", "clicks"))
    assert load_pool(path) == expected


def test_json_takes_bins_as_columns_too(tmp_path):
    pool = make_pool([100, 7], pooling=[0.5, 3])
    rows = [
        {"rows": int(r), "pooling": float(p), "distinct": int(d)}
        | {f"uses_{b}": float(u) for b, u in enumerate(uses)}
        | {f"accesses_{b}": float(a) for b, a in enumerate(accesses)}
        for r, p, d, uses, accesses in zip(
            pool.rows, pool.pooling, pool.distinct, pool.uses, pool.accesses, strict=True
        )
    ]
    (tmp_path / "p.json").write_text(json.dumps({"tables": rows}))
    assert load_pool(tmp_path / "p.json") == pool


def test_a_list_of_objects_and_headers_in_any_case_are_read(tmp_path):
    expected = make_pool([5, 70], [8, 16], dtype=("fp16", "fp32"), name=("a", "b"), reference_batch=512)
    (tmp_path / "p.csv").write_text("NAME,Rows,dIM,Dtype,Reference_Batch\na,5,8,FP16,512\nb,70,16,fp32,512\n")
    rows = [{"Name": "a", "rows": 5, "DIM": 8, "dtype": "fp16", "reference_batch": 512}]
    rows.append({"dtype": "fp32", "Name": "b", "rows": 70, "DIM": 16, "reference_batch": 512})
    (tmp_path / "p.json").write_text(json.dumps(rows))
    assert load_pool(tmp_path / "p.csv") == load_pool(tmp_path / "p.json") == expected


BAD_CSV = {
    "name;rows;dim\na;4;4": "columns are separated by commas, found ';'; give CSV: a header such as name,rows",
    "rows\tdim\n4\t4": "columns are separated by commas, found '\\t'",
    "num_embeddings,embedding_dim\n4,4": "num_embeddings is called rows here; known are",
    "rows,Rows\n4,1": "['rows'] appear more than once",
    "": "no column rows",
    "rows": "no tables",
    "dim,name\n4,a": "no column rows",
    "rows,pool\n4,1": "unknown columns ['pool']; known are name, rows, dim",
    "rows,rows\n4,1": "['rows'] appear more than once",
    "rows,dim\n4,4\n5": "row 1: 1 cells under 2 columns",
    "rows,dim\n4,4\n5,4,9": "row 1: 3 cells under 2 columns",
    "rows,dim\n4,4\n5,": "row 1: dim must be a number, found ''",
    "rows\n4\nmany": "row 1: rows must be a number, found 'many'",
    "rows\n4.5": "row 0: rows must be a whole number",
    "rows\n9223372036854775808": "row 0: rows must be a whole number up to 9223372036854775807",
    "rows\nnan": "row 0: rows must be a number",
    "rows\n0": "rows must be at least 1: table 0",
    "rows,dim\n4,4294967312": "row 0: dim must be a whole number up to 2147483647",
    "rows,pooling\n4,1\n4,inf": "row 1: pooling must be a number",
    "rows,pooling\n4,1\n4,1e39": "row 1: pooling must be a number",
    "rows,pooling\n4,-1": "pooling must not be negative",
    "rows,dtype\n4,fp16\n4,fp8": "row 1: dtype must be one of fp32, fp16, bf16, int8, found 'fp8'",
    "rows,distinct\n4,2": "give all three, not only ['distinct']",
    "rows,uses_0\n4,1": "has uses_0 but not uses_1, uses_2",
    "rows,uses\n4,1": "row 0: uses must be a list of 17 numbers",
    "rows,reference_batch\n4,8\n4,9": "row 1: reference_batch is not that of row 0",
    "rows,reference_batch\n4,0": "reference_batch must be positive",
    'rows,name\n4,"open': "is not CSV",
}


def refuses(path, text, message):
    path.write_text(text)
    with pytest.raises(CorruptFile) as refusal:
        load_pool(path)
    assert str(path) in str(refusal.value)
    assert message in str(refusal.value)


@pytest.mark.parametrize("text", BAD_CSV)
def test_bad_csv_is_refused(tmp_path, text):
    refuses(tmp_path / "p.csv", text, BAD_CSV[text])


BAD_JSON = {
    "{": "is not JSON",
    "[]": "no tables",
    '{"rows": [1]}': "expected a list of objects",
    '{"tables": {"rows": [1]}}': "a list of objects",
    '{"tables": []}': "no tables",
    '{"tables": [{"rows": 1}], "batch": 5}': "unknown keys ['batch']",
    '{"tables": [{"rows": 1}], "schema": "shard-gym/pool/9"}': "is not shard-gym/pool/1",
    '{"tables": ["rows"]}': "row 0: expected an object, found 'rows'",
    '{"tables": [{}]}': "no column rows",
    '{"tables": [{"rows": 1}, {"rows": 1, "dim": 4}]}': "row 1: ['dim'] must be in every row or in none",
    '{"tables": [{"rows": 1, "reference_batch": 4}]}': "stands beside the tables",
    '{"tables": [{"rows": 1}], "reference_batch": "big"}': "reference_batch must be a number",
    '{"tables": [{"rows": true}]}': "row 0: rows must be a number, found True",
    '{"tables": [{"rows": null}]}': "row 0: rows must be a number, found None",
    '{"tables": [{"rows": 1, "name": 7}]}': "row 0: name must be text, found 7",
    '{"tables": [{"rows": 1, "pooling": NaN}]}': "NaN is no number in JSON",
    '{"tables": [{"rows": 1, "uses": [1, 0]}]}': "row 0: uses must be a list of 17 numbers",
    '{"tables": [{"rows": 1, "uses": [%s"x"]}]}' % ("0, " * 16): "row 0: uses must be a number",
    '{"tables": [{"rows": 1, "uses": [], "uses_0": 1}]}': "both uses and uses_0",
    '{"tables": [{"rows": %s}]}' % ("9" * 400): "is too large: 400 digits",
    '{"tables": [{"rows": 1, "pooling": %s}]}' % ("9" * 400): "is too large: 400 digits",
}


@pytest.mark.parametrize("text", BAD_JSON)
def test_bad_json_is_refused(tmp_path, text):
    refuses(tmp_path / "p.json", text, BAD_JSON[text])


BAD_PARQUET = {
    "null": ({"rows": [1, None]}, "row 1: rows must be a number, found None"),
    "text": ({"rows": ["1", "two"]}, "row 1: rows must be a number, found 'two'"),
    "unknown": ({"rows": [1], "hash_size": [1]}, "unknown columns ['hash_size']"),
    "no rows": ({"dim": [4]}, "no column rows"),
    "empty": ({"rows": []}, "no tables"),
}


@pytest.mark.parametrize("case", BAD_PARQUET)
def test_bad_parquet_is_refused(tmp_path, case):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns, message = BAD_PARQUET[case]
    parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
    with pytest.raises(CorruptFile) as refusal:
        load_pool(tmp_path / "p.parquet")
    assert message in str(refusal.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@per_example
def test_a_damaged_file_is_a_pool_or_a_typed_error(tmp_path, suffix, data):
    path = tmp_path / f"p{suffix}"
    save_pool(make_pool([100, 7], pooling=[0.5, 3]), path)
    content = bytearray(path.read_bytes())
    keep = data.draw(st.integers(0, len(content)))
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: keep if data.draw(st.booleans()) else None])
    try:
        assert len(load_pool(path)) > 0
    except ShardGymError as error:
        assert str(path) in str(error)


@given(st.lists(st.sampled_from(COLUMNS), max_size=4), st.text(string.printable, max_size=60))
@per_example
def test_any_csv_is_a_pool_or_a_typed_error(tmp_path, header, body):
    path = tmp_path / "p.csv"
    path.write_text(",".join(["rows", *header]) + "\n" + body, newline="")
    try:
        assert len(load_pool(path)) > 0
    except CorruptFile as error:
        assert str(path) in str(error)


def test_other_suffixes_are_refused(tmp_path):
    for call in (lambda p: load_pool(p), lambda p: save_pool(make_pool([1]), p)):
        with pytest.raises(UnknownName, match=r"'\.pkl'; choose one of: \.csv, \.json, \.parquet; give CSV: "):
            call(tmp_path / "pool.pkl")
    assert not list(tmp_path.iterdir())


def test_a_missing_file_stays_a_missing_file(tmp_path):
    for suffix in SUFFIXES:
        with pytest.raises(FileNotFoundError):
            load_pool(tmp_path / f"nowhere{suffix}")


def test_an_empty_pool_is_not_saved(tmp_path):
    with pytest.raises(InvalidPool, match="without tables"):
        save_pool(make_pool([1]).take([]), tmp_path / "p.json")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_failed_save_leaves_the_old_file(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    save_pool(make_pool([1]), path)
    before = path.read_bytes()
    with pytest.raises(InvalidPool, match="not valid Unicode"):
        save_pool(make_pool([2], name=("\ud800",)), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingDependency, match=r'pip install -e ".*\[parquet\]"'):
        load_pool(tmp_path / "p.parquet")
    with pytest.raises(MissingDependency, match="parquet"):
        save_pool(make_pool([1]), tmp_path / "q.parquet")
    save_pool(make_pool([1]), tmp_path / "p.csv")
