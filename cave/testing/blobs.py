"""The contract of `BlobStore`, as a test class to subclass. Needs pytest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cave.errors import StoreError
from cave.ports import BlobStore


class BlobStoreContract:
    """What every `BlobStore` promises. Subclass it and give `open_blobs`."""

    place: Path

    @pytest.fixture(autouse=True)
    def _prepared(self, tmp_path: Path) -> None:
        self.place = tmp_path

    def open_blobs(self) -> BlobStore:
        """A blob store on `self.place`."""
        raise NotImplementedError

    def test_a_blob_is_read_by_the_hash_of_its_content(self) -> None:
        """`put` gives the SHA-256 of all chunks, and `read` gives all of them."""
        blobs = self.open_blobs()
        key = blobs.put([b"ab", b"", b"c" * 100_000])
        content = b"ab" + b"c" * 100_000
        assert key == hashlib.sha256(content).hexdigest()
        assert blobs.read(key) == content
        assert self.open_blobs().read(key) == content

    def test_an_empty_blob_is_a_blob(self) -> None:
        """Nothing has a key, too."""
        blobs = self.open_blobs()
        assert blobs.read(blobs.put([])) == b""

    def test_the_same_content_is_kept_once(self) -> None:
        """Putting what is there changes nothing."""
        blobs = self.open_blobs()
        keys = {blobs.put([b"same"]), blobs.put([b"sa", b"me"])}
        assert len(keys) == 1
        assert list(blobs.keys()) == list(keys)

    def test_keys_lists_every_blob(self) -> None:
        """`keys` gives each key once, and none in an empty store."""
        blobs = self.open_blobs()
        assert list(blobs.keys()) == []
        put = {blobs.put([bytes([n])]) for n in range(20)}
        assert sorted(blobs.keys()) == sorted(put)

    def test_a_missing_blob_is_a_store_error(self) -> None:
        """Reading what is not there names the key; deleting it is no error."""
        blobs = self.open_blobs()
        key = blobs.put([b"gone"])
        blobs.delete(key)
        blobs.delete(key)
        assert list(blobs.keys()) == []
        with pytest.raises(StoreError, match=key):
            blobs.read(key)

    @pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
    def test_what_is_no_key_is_refused(self, key: str) -> None:
        """Only 64 hex digits are a key; nothing else reaches the files."""
        blobs = self.open_blobs()
        with pytest.raises(StoreError):
            blobs.read(key)
        with pytest.raises(StoreError):
            blobs.delete(key)

    def test_a_source_that_fails_leaves_nothing(self) -> None:
        """When the chunks cannot be had to the end, there is no blob and the error is theirs."""
        blobs = self.open_blobs()

        def chunks() -> Iterator[bytes]:
            yield b"some"
            raise LookupError("the source broke")

        with pytest.raises(LookupError, match="the source broke"):
            blobs.put(chunks())
        assert list(blobs.keys()) == []
