"""Fixtures that are large and repeat themselves lie in archives, which CMake unpacks."""

import io
import tarfile


def pack(path, text):
    """Writes the text as the one file of the archive PATH.tar.xz: the same bytes for the same text."""
    data = text.encode()
    info = tarfile.TarInfo(path.name)
    info.size = len(data)
    with tarfile.open(f"{path}.tar.xz", "w:xz", preset=9) as archive:
        archive.addfile(info, io.BytesIO(data))
