"""Packages that a part of this one needs, and the extra of the wheel that brings them."""

import importlib.util


def need(part, extra, *packages):
    """Errors: ImportError, which names the packages that are not here, and the extra."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"{part} needs the package{'s' if len(missing) > 1 else ''} {', '.join(missing)}; allowed: pip install "
                          f"'headwater[{extra}]', or {' '.join(packages)} by themselves")
