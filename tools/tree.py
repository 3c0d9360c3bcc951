"""The files of this repository, for the lint scripts. Standard library only."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def files(root=ROOT):
    """Paths relative to root of what git tracks or would track, sorted; everything but build/ outside git."""
    # safe.directory: CI may run as another user than the one who cloned.
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
        capture_output=True, check=False)
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        paths = [pathlib.PurePosixPath(name) for name in names if name]
    else:
        paths = [pathlib.PurePosixPath(p.relative_to(root).as_posix()) for p in root.rglob("*")
                 if p.is_file() and p.relative_to(root).parts[0] not in ("build", ".git")]
    return sorted({p for p in paths if (root / p).is_file()})


def sources(root=ROOT, suffixes=(".cpp", ".hpp", ".c", ".h")):
    """C and C++ files of the repository."""
    return [p for p in files(root) if p.suffix in suffixes]


def report(name, problems):
    """Prints the problems and returns the exit status of a lint."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0
