"""Tables, batches and arrays of pyarrow as IPC streams.

A stream holds what an object shows, never the parent of a slice. On reading every batch is
validated in full before anything looks into it: mutated streams crash or hang readers that
do not. Extension types are refused on both sides, since reading one runs code that its
name selects.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .codec import Decoder, Encoder, Malformed, Node, fields, instance, reads, writes

_NAMES = {pa.Table: "pa.table", pa.RecordBatch: "pa.batch", pa.ChunkedArray: "pa.chunked"}


def write(enc: Encoder, obj: Any) -> list[Node]:
    """The node of a table, batch, array or chunked array."""
    if isinstance(obj, pa.Array):
        return ["pa.array", *_write_array(enc, obj)]
    if isinstance(obj, pa.ChunkedArray):
        return ["pa.chunked", *_write_chunked(enc, obj)]
    return [_NAMES[type(obj)], *_write_table(enc, obj)]


def _stream(enc: Encoder, schema: Any, batches: list[Any]) -> list[Node]:
    if not enc.arrow:
        raise enc.refusal("an object of pyarrow, and the other side has no pyarrow")
    for column in schema:
        if _extends(column.type):
            raise enc.refusal(f"column {column.name!r} has the extension type {column.type}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return [enc.stow(sink.getvalue())]


def _extends(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType):
        return _extends(kind.value_type)
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return any(map(_extends, inner))


def _read(dec: Decoder, ref: Node) -> tuple[Any, list[Any]]:
    """Schema and validated batches of a stream."""
    view = dec.raw(ref)
    data = pa.py_buffer(view)
    if data.address % 64:
        data = pa.py_buffer(bytes(view))
    _refuse_compressed(data)
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
        str(schema)  # names that are not UTF-8 raise here, not where they are used
        if any(_extends(column.type) for column in schema):
            raise Malformed("an extension type")
        batches = []
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
    return schema, batches


_DICTIONARY = "dictionary"


def _refuse_compressed(data: Any) -> None:
    """We never compress: of a stream that is, a few bytes could become more than the memory."""
    for message in pa.ipc.MessageReader.open_stream(data):
        table = _Table.root(bytes(message.metadata)).table(2)
        if table is not None and message.type == _DICTIONARY:
            table = table.table(1)
        if table is not None and message.type != "schema" and table.has(3):
            raise Malformed("a compressed stream")


class _Table:
    """One table of a flatbuffer (Message.fbs of Arrow's format), as far as it is needed here.

    pyarrow has checked that all of it lies inside of the message.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, _number(data, 0, 4))

    def _field(self, number: int) -> int:
        """Where a field is; 0 when it is absent."""
        fields = self._at - int.from_bytes(
            self._data[self._at : self._at + 4], "little", signed=True
        )
        place = 4 + 2 * number
        inside = place < _number(self._data, fields, 2)
        found = _number(self._data, fields + place, 2) if inside else 0
        return self._at + found if found else 0

    def has(self, number: int) -> bool:
        return self._field(number) != 0

    def table(self, number: int) -> _Table | None:
        at = self._field(number)
        return _Table(self._data, at + _number(self._data, at, 4)) if at else None


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


@writes("pa.table", pa.Table)
def _write_table(enc: Encoder, obj: Any) -> list[Node]:
    return _stream(enc, obj.schema, obj.to_batches())


@reads("pa.table")
def _read_table(dec: Decoder, node: list[Node]) -> Any:
    schema, batches = _read(dec, fields(node, 2)[1])
    return pa.Table.from_batches(batches, schema)


@writes("pa.batch", pa.RecordBatch)
def _write_batch(enc: Encoder, obj: Any) -> list[Node]:
    return _stream(enc, obj.schema, [obj])


@reads("pa.batch")
def _read_batch(dec: Decoder, node: list[Node]) -> Any:
    _, batches = _read(dec, fields(node, 2)[1])
    if len(batches) != 1:
        raise Malformed("one batch was expected")
    return batches[0]


@writes("pa.chunked", pa.ChunkedArray)
def _write_chunked(enc: Encoder, obj: Any) -> list[Node]:
    schema = pa.schema([pa.field("", obj.type)])
    return _stream(enc, schema, [pa.record_batch([part], schema) for part in obj.chunks])


@reads("pa.chunked")
def _read_chunked(dec: Decoder, node: list[Node]) -> Any:
    schema, batches = _read(dec, fields(node, 2)[1])
    if len(schema) != 1:
        raise Malformed("one column was expected")
    return pa.chunked_array([batch.column(0) for batch in batches], schema.field(0).type)


def _write_array(enc: Encoder, obj: Any) -> list[Node]:
    schema = pa.schema([pa.field("", obj.type)])
    return _stream(enc, schema, [pa.record_batch([obj], schema)])


@reads("pa.array")
def _read_array(dec: Decoder, node: list[Node]) -> Any:
    _, batches = _read(dec, fields(node, 2)[1])
    if len(batches) != 1 or batches[0].num_columns != 1:
        raise Malformed("one array was expected")
    return batches[0].column(0)


def chunked(dec: Decoder, node: Node) -> Any:
    """The chunked array of a node that another codec holds."""
    if instance(node, list)[:1] != ["pa.chunked"]:
        raise Malformed("a column of Arrow was expected")
    return _read_chunked(dec, node)


def table(dec: Decoder, node: Node) -> Any:
    """The table of a node that another codec holds."""
    if instance(node, list)[:1] != ["pa.table"]:
        raise Malformed("a table was expected")
    return _read_table(dec, node)


def strings(dec: Decoder, node: Node) -> Any:
    """A chunked array of texts."""
    made = chunked(dec, node)
    if not (pa.types.is_string(made.type) or pa.types.is_large_string(made.type)):
        raise Malformed("texts were expected")
    return made


def _kinds(base: Any) -> list[type]:
    return [base, *(kind for sub in base.__subclasses__() for kind in _kinds(sub))]


writes("pa.array", *(k for k in _kinds(pa.Array) if not issubclass(k, pa.ExtensionArray)))(
    _write_array
)


@writes("pa.type", *_kinds(pa.DataType))
@writes("pa.schema", pa.Schema)
def _write_type(enc: Encoder, obj: Any) -> list[Node]:
    schema = obj if isinstance(obj, pa.Schema) else pa.schema([pa.field("", obj)])
    return _stream(enc, schema, [])


@reads("pa.type")
def _read_type(dec: Decoder, node: list[Node]) -> Any:
    schema, _ = _read(dec, fields(node, 2)[1])
    if len(schema) != 1:
        raise Malformed("one type was expected")
    return schema.field(0).type


@reads("pa.schema")
def _read_schema(dec: Decoder, node: list[Node]) -> Any:
    return _read(dec, fields(node, 2)[1])[0]
