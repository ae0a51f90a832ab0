import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cave.operators.fence import FenceParser, first_sentence, parse

CELLS = {
    "python": "```python\nx = 1\n```",
    "py": "```py\nx = 1\n```\n",
    "no label": "```\nx = 1\n```",
    "upper case and words": '```Python title="a.py"\nx = 1\n```',
    "braces": "```{python}\nx = 1\n```",
    "tildes": "~~~python\nx = 1\n~~~",
    "longer": "`````python\nx = 1\n`````",
    "longer end": "```python\nx = 1\n````",
    "windows lines": "```python\r\nx = 1\r\n```\r\n",
    "indented": "1. so:\n   ```python\n   x = 1\n   ```",
    "text around": "Set it.\n```python\nx = 1\n```\nThat sets it.",
    "output after": "```python\nx = 1\n```\n```output\n1\n```",
    "json before": "```json\n{}\n```\n```python\nx = 1\n```",
    "thought before": "<think>\n```python\ny\n```\n</think>\n```python\nx = 1\n```",
    "thought in one line": "<think>hm</think>```python\nx = 1\n```",
    "thought begun in the prompt": "hm\n```python\ny\n```\n</think>\n```python\nx = 1\n```",
}


@pytest.mark.parametrize("text", CELLS.values(), ids=CELLS.keys())
def test_one_block_is_a_cell(text):
    """Every usual way to write one block of Python gives its source."""
    reply = parse(text)
    assert (reply.kind, reply.source) == ("cell", "x = 1")


MALFORMED = {
    "empty": ("", "empty"),
    "blank": (" \n\n", "empty"),
    "only thought": ("<think>x</think>", "empty"),
    "thought without end": ("<think>x\n```python\nx\n```", "empty"),
    "two blocks": ("```python\nx\n```\n```python\ny\n```", "2 Python blocks"),
    "two blocks, one bare": ("```python\nx\n```\nprints\n```\n3\n```", "2 Python blocks"),
    "unterminated": ("```python\nx = 1", "not closed"),
    "unterminated at fence": ("```python\nx = 1\n``", "not closed"),
    "unterminated second": ("```python\nx\n```\n```json\n{", "not closed"),
    "other character": ("```python\nx\n~~~", "not closed"),
    "unterminated string": ('```python\nx = """a\n```', "not closed"),
    "opened inside": ("```python\nx\n```python\ny\n```", "inside another"),
    "empty block": ("```python\n\n```", "empty"),
    "shell": ("```bash\nls\n```", "not bash"),
}


@pytest.mark.parametrize(("text", "why"), MALFORMED.values(), ids=MALFORMED.keys())
def test_nothing_is_run_by_guess(text, why):
    """What is not one complete block or an answer is malformed, with why and the raw text."""
    reply = parse(text)
    assert (reply.kind, reply.source, reply.raw) == ("malformed", "", text)
    assert why in reply.text


def test_a_fence_in_a_string_belongs_to_the_string():
    """Fences inside triple-quoted strings and comments do not end the block."""
    source = 'doc = """\n```python\ny\n```\n"""\nq = \'\'\'\n```\n\'\'\'  # """\nx = r"""\\""""'
    assert parse(f"```python\n{source}\n```").source == source


def test_a_longer_fence_holds_shorter_ones():
    """A block of four backticks ends at four, whatever is inside."""
    source = "# ```\n```\nx"
    assert parse(f"````python\n{source}\n````").source == source


def test_text_without_code_is_the_answer():
    """Prose is an answer with its lines, and so are lists, tables and blocks of data."""
    text = 'North grew most.\n\n- a `x`\n```json\n{"a": 1}\n```\nDone ```inline``` too.'
    reply = parse(text)
    assert (reply.kind, reply.text) == ("finish", text)
    assert parse("<think>hm</think>\n4").text == "4"


@pytest.mark.parametrize(
    ("before", "note"),
    [
        ("I load the file. Then I look.", "I load the file."),
        ("## Load:", "Load"),
        ("**Step 1**", "Step 1"),
        ("Value is 3.5 now", "Value is 3.5 now"),
        ("two\nlines", "two lines"),
        ("", ""),
    ],
)
def test_the_note_is_the_first_sentence_before_the_code(before, note):
    """Text before the block becomes the one-line intent; text after it does not."""
    assert parse(f"{before}\n```python\nx\n```\nAfter.").note == note


def test_notes_are_short():
    """A sentence without end is cut."""
    assert len(first_sentence("word " * 500)) <= 200


PIECES = st.lists(
    st.sampled_from(
        [
            "```",
            "````",
            "~~~",
            "`",
            "python",
            "py",
            "json",
            "\n",
            "\r\n",
            "\r",
            "  ",
            "x = 1",
            '"""',
            "'''",
            "<think>",
            "</think>",
            "<",
            "é😀",
            "\\",
            "#",
            "�",
            '"',
            "said.",
        ]
    ),
    max_size=40,
)
TEXTS = PIECES.map("".join) | st.text(max_size=200)


def chunked(text, cuts):
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXTS, st.lists(st.integers(min_value=0), max_size=20))
def test_any_chunking_reads_alike(text, cuts):
    """Pieces of any size give the reading of the whole, and show the same prose."""
    whole, pieces = FenceParser(), FenceParser()
    shown = whole.feed(text)
    parts = "".join(map(pieces.feed, chunked(text, cuts)))
    assert parts == shown
    assert pieces.close() == whole.close()


@given(TEXTS.map(lambda t: t.encode("utf-8", "replace")), st.lists(st.integers(min_value=0)))
def test_bytes_may_be_cut_anywhere(data, cuts):
    """UTF-8 cut inside a character reads like the whole text."""
    parser = FenceParser()
    for piece in chunked(data, cuts):
        parser.feed(piece)
    assert parser.close() == parse(data.decode())


@given(TEXTS)
def test_every_text_has_one_reading(text):
    """No text raises; a cell has source, a finish has text, a malformed reply says why."""
    reply = parse(text)
    filled = {"cell": reply.source, "finish": reply.text, "malformed": reply.text}
    assert filled[reply.kind].strip()


@given(st.text(alphabet="abc \n=1", max_size=80))
def test_an_unclosed_block_never_runs(body):
    """Whatever stands in a block, without its end nothing is run."""
    assert parse("```python\n" + body).kind == "malformed"
