"""The journal of an evaluation: one line of JSON for each cell that is done, so that a run goes on where it was stopped."""

import fcntl
import hashlib
import json
import os
import stat
import tempfile

FORMAT = 1


def digest(configuration):
    """Of a dict of JSON values: the same for equal ones."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:16]


def replace(path, text):
    """Writes a file whole or not at all. Errors: OSError."""
    folder = os.path.dirname(path) or "."
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".evaluate-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Journal:
    """Cells by their key, a list of strings and numbers; the file is locked while it is open.

    The first line names the configuration. A last line that a kill cut off is dropped; any other damage is an error.
    """

    def __init__(self, path, configuration):
        """Errors: ValueError (another configuration, damage, another process), OSError."""
        self._path, self._cells = path, {}
        self.run = 1  # the number of this run over the file
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise ValueError(f"{path} is no regular file; allowed: a journal that headwater.evaluate wrote")
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{path} is in use by another process; allowed: one at a time") from None
            self._read(configuration)
        except BaseException:
            self.close()
            raise

    def _read(self, configuration):
        with open(self._path, "rb") as file:
            text = file.read()
        whole = text.rfind(b"\n") + 1
        lines = text[:whole].split(b"\n")[:-1]
        if not lines and text and not b'{"headwater_evaluate": '.startswith(text[:23]):
            raise ValueError(f"{self._path} is no journal of headwater.evaluate; allowed: one, or another folder")
        if whole < len(text):
            os.ftruncate(self._descriptor, whole)  # the line that was being written when the run was killed
        if not lines:
            self._append({"headwater_evaluate": FORMAT, "hash": digest(configuration), "configuration": configuration})
            return
        self._check(self._parsed(lines[0], 1, ("headwater_evaluate", "hash", "configuration")), configuration)
        for number, line in enumerate(lines[1:], 2):
            row = self._parsed(line, number, ("cell", "result"))
            if not isinstance(row["cell"], list) or not isinstance(row["result"], dict):
                raise self._damage(number)
            self._cells[json.dumps(row["cell"])] = row["result"]
            run = row["result"].get("run", 0)
            if type(run) is not int or not 0 <= run < 2**31:
                raise self._damage(number)
            self.run = max(self.run, run + 1)

    def _damage(self, number):
        return ValueError(f"{self._path}, line {number}: damaged; allowed: what headwater.evaluate wrote there. Delete the "
                          "line to evaluate its cell again, or use another folder")

    def _parsed(self, line, number, keys):
        try:
            row = json.loads(line)
        except ValueError:  # UnicodeDecodeError, too
            raise self._damage(number) from None
        except RecursionError:
            raise self._damage(number) from None
        if not isinstance(row, dict) or set(row) != set(keys):
            raise self._damage(number)
        return row

    def _check(self, first, configuration):
        had = first["configuration"]
        if first["headwater_evaluate"] != FORMAT:
            raise ValueError(f"{self._path} has format {first['headwater_evaluate']!r}; allowed: {FORMAT}")
        if not isinstance(had, dict) or first["hash"] != digest(had):
            raise self._damage(1)
        for key in sorted({*had, *configuration}):
            if had.get(key) != configuration.get(key):
                raise ValueError(f"{self._path} is of another configuration: {key} is {had.get(key)!r} there and "
                                 f"{configuration.get(key)!r} here; allowed: the same, or another folder")

    def _append(self, row):
        line = (json.dumps(row) + "\n").encode()
        while line:
            line = line[os.write(self._descriptor, line):]

    def get(self, cell):
        """The result of a cell, or None."""
        return self._cells.get(json.dumps(cell))

    def add(self, cell, result):
        """A line that outlives a kill of this process, with the number of the run. Errors: OSError (a full disk)."""
        result["run"] = self.run
        self._append({"cell": cell, "result": result})
        self._cells[json.dumps(cell)] = result

    def close(self):
        os.close(self._descriptor)
