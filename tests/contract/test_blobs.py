from __future__ import annotations

from cave.ports import BlobStore
from cave.store import FolderBlobs
from cave.testing.blobs import BlobStoreContract


class TestFolder(BlobStoreContract):
    """Blobs in a folder keep the contract."""

    def open_blobs(self) -> BlobStore:
        return FolderBlobs(self.place / "blobs")


class TestUrl(BlobStoreContract):
    """Blobs on another of fsspec's file systems keep the contract."""

    def open_blobs(self) -> BlobStore:
        return FolderBlobs(f"memory://{self.place}")
