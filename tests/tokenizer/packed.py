"""The fixtures lie in one archive, which CMake unpacks."""

import io
import lzma
import pathlib
import tarfile

ARCHIVE = pathlib.Path(__file__).parent / "fixtures.tar.xz"


def unpack():
    """The files of the archive: bytes by name."""
    if not ARCHIVE.exists():
        return {}
    with tarfile.open(ARCHIVE) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def pack(name, content):
    """Puts a file into the archive, a text or bytes: the same bytes for the same files."""
    files = unpack() | {name: content.encode() if isinstance(content, str) else content}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file, data in sorted(files.items()):
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    ARCHIVE.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
