"""Print the folder of the headers of XLA's foreign calls, and the root folder of oneDNN: `INCLUDE;ROOT`."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import jaxlib


def onednn_root() -> Path | str:
    """Return the folder above `lib/libdnnl.so.3` of the package onednn-cpu-gomp; "" if it is not installed."""
    try:
        files = distribution("onednn-cpu-gomp").files or []
    except PackageNotFoundError:
        return ""
    return next(Path(str(file.locate())).resolve().parents[1] for file in files if file.name == "libdnnl.so.3")


print(Path(jaxlib.__file__).parent / "include", onednn_root(), sep=";")
