"""Arrays and frames share memory afterwards with what they shared it with before."""

# ruff: noqa: E501, ISC004 (kinds are code, whose lines count for themselves)

import importlib.util

import pytest

from tests.inkernel.image._worlds import World, cross

_SIZES = (8, 40_000)


def _arrays(n: int) -> dict[str, tuple[str, str]]:
    """The same kinds for small arrays and for those that leave the stream."""
    a = f"a{n}"
    return {
        f"view and base {n}": (
            f"import numpy as np; {a} = np.arange({n}.0); {a}v = {a}[2:5]; {a}s = {a}[::2]; {a}r = {a}[::-1]",
            f"{a}[2] = -1; assert {a}v[0] == -1 == {a}s[1] == {a}r[-3]; {a}v[1] = 7; assert {a}[3] == 7",
        ),
        f"views only {n}": (
            f"b{a} = np.arange({n}.0); {a}x, {a}y = b{a}[1:5], b{a}[3:7]; del b{a}",
            f"{a}x[2] = 55; assert {a}y[0] == 55 and list({a}x) == [1, 2, 55, 4]",
        ),
        f"flags {n}": (
            f"""
            {a}ro = np.arange({n}); {a}ro.flags.writeable = False; {a}rov = {a}ro[1:]
            {a}f = np.asfortranarray(np.arange({n}).reshape(2, -1)); {a}t = {a}f.T
            """,
            f"""
            assert not {a}ro.flags.writeable and not {a}rov.flags.writeable and {a}rov[0] == 1
            {a}ro.flags.writeable = True; {a}ro[1] = 9; assert {a}rov[0] == 9
            assert {a}f.flags.f_contiguous and not {a}f.flags.c_contiguous
            {a}f[1, 0] = -4; assert {a}t[0, 1] == -4
            """,
        ),
        f"dtypes {n}": (
            f"""
            {a}d = dict(t=np.arange({n}).astype("M8[s]"), dt=np.arange({n}).astype("m8[ms]"), c=np.ones({n}, "c16"),
                s=np.array(["ab", "c"] * {n // 2}), b=np.zeros({n}, bool), e=np.zeros((0, 3)), z=np.array(5.0),
                be=np.arange({n}).astype(">i4"), h=np.ones({n}, "f2"), r=np.zeros({n}, [("x", "i4"), ("y", "f8")]))
            {a}field = {a}d["r"]["y"]
            """,
            f"""
            assert {a}d["t"][1] == np.datetime64(1, "s") and {a}d["dt"].dtype == "m8[ms]" and {a}d["s"][1] == "c"
            assert {a}d["e"].shape == (0, 3) and {a}d["z"].shape == () and {a}d["z"] == 5 and {a}d["be"].dtype == ">i4"
            {a}field[1] = 2.5; assert {a}d["r"]["y"][1] == 2.5 and {a}d["r"].dtype.names == ("x", "y")
            """,
        ),
        f"subclasses {n}": (
            f"""
            {a}m = np.ma.array(np.arange({n}), mask=np.arange({n}) % 2 == 0, fill_value=-7); {a}md = {a}m.data
            {a}mx, {a}rec = np.matrix([[1, 2], [3, 4]]), np.zeros({n}, [("x", "i4")]).view(np.recarray)
            class Info{n}(np.ndarray):
                def __array_finalize__(self, obj): self.info = getattr(obj, "info", None)
            {a}i = np.arange({n}).view(Info{n}); {a}i.info = ["note"]
            """,
            f"""
            assert {a}m.fill_value == -7 and {a}m.mask[0] and not {a}m.mask[1] and {a}m.sum() == sum(range(1, {n}, 2))
            {a}md[1] = 100; assert {a}m[1] == 100 and type({a}mx * {a}mx) is np.matrix
            {a}rec.x[0] = 4; assert {a}rec[0].x == 4 and type({a}i) is Info{n} and {a}i.info == ["note"]
            """,
        ),
        f"objects {n}": (
            f"""
            shared{n} = [1]; {a}o = np.array([shared{n}, None] * {n // 2}, object); {a}ov = {a}o[1:]
            {a}txt = np.array(["x%d" % i for i in range({n})] + [None, float("nan")], object)
            {a}loop = np.array([None, 1], object); {a}loop[0] = {a}loop
            """,
            f"""
            shared{n}.append(2); assert {a}o[0] is shared{n} is {a}o[2]; {a}ov[0] = "new"; assert {a}o[1] == "new"
            assert {a}txt[3] == "x3" and type({a}txt[3]) is str and {a}txt[-2] is None and {a}txt[-1] != {a}txt[-1]
            {a}txt[0] = "w"; assert {a}loop[0] is {a}loop
            """,
        ),
        f"bytes and arrays {n}": (
            f"{a}ba = bytearray({n}); {a}fb = np.frombuffer({a}ba, 'u1'); {a}fro = np.frombuffer(b'x' * {n}, 'u1')",
            f"{a}ba[3] = 9; assert {a}fb[3] == 9; {a}fb[4] = 8; assert {a}ba[4] == 8; assert not {a}fro.flags.writeable",
        ),
    }


_NUMPY = {
    "generators": (
        "rng, old = np.random.default_rng(3), np.random.RandomState(4); rng.random(5); twin = rng\n"
        "want = np.random.default_rng(3).random(6)[5]",
        "assert twin is rng and rng.random() == want and old.randint(10) == np.random.RandomState(4).randint(10)",
    ),
    "small slice of a large parent": (
        "parent = np.zeros(10_000_000); parent[7] = 3; few = parent[5:9]; del parent",
        "assert few[2] == 3 and few.base is None or few.nbytes == 32",
    ),
}
_MEMMAP = {
    "memmap": (
        "mm = np.memmap('mapped.bin', 'f8', 'w+', shape=(100,)); mm[:] = 1; mv = mm[2:]; mp = np.asarray(mm)[:9]\n"
        "mc = np.memmap('mapped.bin', 'f8', 'c'); mc[0] = 77",
        "mm[2] = 5; assert mv[0] == 5 == mp[2]; mv[1] = 7; mm.flush(); assert mc[0] == 77\n"
        "assert np.fromfile('mapped.bin')[2:4].tolist() == [5, 7] and type(mm) is np.memmap",
    ),
}
_PANDAS = {
    "frame over an array": (
        "import pandas as pd; over = np.zeros((30_000, 3)); frame = pd.DataFrame(over, columns=list('abc'), copy=False)\n"
        "out = frame.to_numpy(); column = frame['b']",
        "over[1, 1] = 5; assert frame.iloc[1, 1] == 5 == out[1, 1]\n"
        "assert np.shares_memory(out, over) and np.shares_memory(column.to_numpy(), over)",
    ),
    "copy on write": (
        "one = pd.DataFrame({'a': np.arange(30_000), 'b': 1.5}); two = one.rename(columns=str.upper); ser = one['a']\n"
        "index = pd.Index(np.arange(5)); from_index = pd.Series(index)",
        "two.iloc[0, 0] = 99; assert one.iloc[0, 0] == 0; ser.iloc[1] = 98; assert one.iloc[1, 0] == 1\n"
        "one.iloc[2, 0] = 97; assert two.iloc[2, 0] == 2 and ser.iloc[2] == 2\n"
        "from_index.iloc[0] = 7; assert index[0] == 0",
    ),
    "columns of all kinds": (
        """
        n = 10_000
        kinds = pd.DataFrame({
            "s": [f"text {i}" for i in range(n)], "c": pd.Categorical(["u", "v"] * (n // 2), ordered=True),
            "t": pd.date_range("2020", periods=n, freq="h", tz="Europe/Berlin"), "i": pd.array([1, None] * (n // 2), "Int64"),
            "b": pd.array([True, None] * (n // 2), "boolean"), "p": pd.period_range("2000", periods=n, freq="D"),
            "sp": pd.arrays.SparseArray([0, 1] * (n // 2)), "iv": pd.interval_range(0, n), "d": pd.timedelta_range(0, periods=n),
            "o": [[1], "x"] * (n // 2)}, index=pd.MultiIndex.from_product([range(n // 2), list("xy")], names=["k", "l"]))
        kinds.attrs["unit"] = ["m"]; kinds.columns.name = "cols"; element = kinds["o"].iloc[0]
        whole = kinds.copy(); stamps = pd.date_range("2020", periods=3, freq="MS", name="when")
        flagged = pd.Series([1, 2], index=["a", "b"], name="f").set_flags(allows_duplicate_labels=False)
        frame_sum = float(whole["i"].sum())
        """,
        """
        pd.testing.assert_frame_equal(kinds, whole); assert kinds.attrs == {"unit": ["m"]} and kinds.columns.name == "cols"
        assert kinds["c"].cat.ordered and str(kinds["t"].dt.tz) == "Europe/Berlin" and kinds["i"].sum() == frame_sum
        element.append(2); assert kinds["o"].iloc[0] == [1, 2]
        assert stamps.freqstr == "MS" and stamps.name == "when" and flagged.flags.allows_duplicate_labels is False
        kinds.loc[(0, "x"), "s"] = "changed"; assert kinds["s"].iloc[0] == "changed"
        """,
    ),
    "text of pandas": (
        "texts = pd.Series(['a%d' % i for i in range(20_000)] + [None]); arrow = texts.astype('string[pyarrow]')\n"
        "objects = texts.astype(object); sliced = texts[:3]",
        "assert texts.iloc[5] == 'a5' and texts.isna().sum() == 1 and arrow.dtype == 'string[pyarrow]'\n"
        "assert objects.iloc[7] == 'a7' and list(sliced) == ['a0', 'a1', 'a2'] and texts.str.upper().iloc[0] == 'A0'",
    ),
    "grouping, windows": (
        "base = pd.DataFrame({'k': [1, 1, 2], 'v': [1., 2., 3.]}); grouped, rolled = base.groupby('k'), base['v'].rolling(2)",
        "assert grouped['v'].sum()[1] == 3 and rolled.sum().iloc[-1] == 5",
    ),
}
_ARROW = {
    "arrow": (
        "import pyarrow as pa; table = pa.table({'s': ['v%d' % i for i in range(50_000)], 'i': range(50_000), 'l': [[1]] * 50_000})\n"
        "slice_, batch = table.slice(10, 2), table.to_batches()[0]; ints = table['i'].chunk(0).to_numpy()\n"
        "schema, scalar, dictionary = table.schema.with_metadata({'a': 'b'}), pa.scalar(5), pa.array(['a', 'b']).dictionary_encode()",
        "assert table['s'][7].as_py() == 'v7' and slice_['i'].to_pylist() == [10, 11] and batch.num_rows == 50_000\n"
        "assert ints[3] == 3 and not ints.flags.writeable and schema.metadata == {b'a': b'b'} and scalar.as_py() == 5\n"
        "assert dictionary.to_pylist() == ['a', 'b'] and table['l'][0].as_py() == [1] and table.validate(full=True) is None",
    ),
}
_POLARS = {
    "polars": (
        "import polars as pl; pf = pl.DataFrame({'s': ['v%d' % i for i in range(20_000)], 'i': range(20_000), 'l': [[1]] * 20_000,\n"
        "  'c': pl.Series(['a', 'b'] * 10_000, dtype=pl.Categorical), 'd': pl.Series(range(20_000), dtype=pl.Datetime('ns', 'UTC'))})\n"
        "ps, small, shape = pf['s'], pl.DataFrame({'a': [1, None]}), pf.schema\n"
        "lazy = pf.lazy().with_columns(j=pl.col('i').map_elements(lambda x: x * 2, return_dtype=pl.Int64))\n"
        "held = [1]; objects_ = pl.DataFrame({'o': pl.Series([held, held, None], dtype=pl.Object), 'x': [1, 2, 3]})",
        "assert pf['s'][5] == 'v5' and pf.schema == shape and ps[6] == 'v6' and small['a'].to_list() == [1, None]\n"
        "assert lazy.collect()['j'][4] == 8 and objects_['o'][0] is held is objects_['o'][1] and objects_['x'].sum() == 6",
    ),
}


def _kinds() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for n in _SIZES:
        found |= _arrays(n)
    found |= _NUMPY | _MEMMAP
    for library, kinds in (("pandas", _PANDAS), ("pyarrow", _ARROW), ("polars", _POLARS)):
        if importlib.util.find_spec(library):
            found |= kinds
    return found


KINDS = _kinds()
NOTED = {"memmap"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return cross(KINDS, tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_and_frames_are_shared_as_they_were(world: World, kind: str) -> None:
    """What was written through one of two names is seen through the other, and only there."""
    assert world.wrong[kind] == ""
    assert {note[0] for note in world.notes[kind]} <= (
        {"rebuilt", "changed"} if kind in NOTED else set()
    )
