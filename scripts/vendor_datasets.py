"""Write the vendored data sets, `src/anytpu/pipeline/files/*.npz`, from the copies that scikit-learn ships.

Run it once by hand, only when a file is lost: `pip install scikit-learn==1.9.1 && python scripts/vendor_datasets.py`.
Nothing needs scikit-learn afterwards.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

FILES = Path(__file__).parents[1] / "src" / "anytpu" / "pipeline" / "files"


def write(name: str, x: np.ndarray, y: np.ndarray) -> None:
    path = FILES / f"{name}.npz"
    np.savez_compressed(path, x=x, y=y)
    print(path.name, x.shape, x.dtype, f"{path.stat().st_size} bytes", hashlib.sha256(path.read_bytes()).hexdigest())


def main() -> None:
    from sklearn.datasets import load_digits, load_iris  # pyright: ignore[reportMissingImports]

    digits, iris = load_digits(), load_iris()
    # Pixels are integers from 0 to 16: a byte each. Iris is in centimetres with one decimal.
    write("digits", digits.images.astype(np.uint8), digits.target.astype(np.uint8))
    write("iris", iris.data.astype(np.float32), iris.target.astype(np.uint8))


if __name__ == "__main__":
    main()
