"""The corpus of programs to port, and the small data that they read."""

from __future__ import annotations

import ast
import dataclasses
import shutil
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "migrate" / "port" / "programs"
PROGRAMS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb"))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one program.

    Attributes:
        name: file name of the program.
        by_hand: number of places that are listed to port by hand.
        result: "ran", "ran for N s" if the trial was ended then, "listed" if it stops at a listed line, or the first
            failure that was not listed.
    """

    name: str
    by_hand: int
    result: str

    @property
    def is_unlisted(self) -> bool:
        """Whether the program breaks at a line that is not listed."""
        return not self.result.startswith(("ran", "listed"))


def port_and_try(path: Path, folder: Path) -> Outcome:
    """Port a program in a folder of its own, make the changes by hand that stand beside it, and try it."""
    from anytpu.migrate.port import ported_file, tried

    make_data(folder)
    shutil.copy(path, folder / path.name)
    file = ported_file(folder / path.name)
    program = file.program
    edits = hand_edits(path)
    for old, new in edits:
        assert old in program.new, f"{path.name}: {old!r} is not in the ported program"
        program = dataclasses.replace(program, new=program.new.replace(old, new))
    trial = tried(program, folder / path.name)
    if not trial.error:
        result = f"ran for {trial.seconds} s" if trial.seconds else "ran"
    elif trial.is_listed and not edits:
        result = "listed"
    else:
        result = f"line {trial.line}: {trial.error}"
    return Outcome(path.name, len(file.program.by_hand), result)


def hand_edits(path: Path) -> list[tuple[str, str]]:
    """Return the changes that an author makes by hand to the ported program: pairs of an old and a new text."""
    edits = path.with_name(f"{path.stem}.hand")
    return ast.literal_eval(edits.read_text()) if edits.is_file() else []


def make_data(folder: Path) -> None:
    """Make the files that the programs read: records of flowers, images, and a table of digits."""
    import anytpu as tpu

    random = np.random.default_rng(0)
    flowers, images = folder / "data" / "flowers", folder / "data" / "images"
    flowers.mkdir(parents=True)
    images.mkdir()
    for split, count in (("train", 48), ("val", 16), ("test", 16)):
        rows = []
        for index in range(count):
            image = tpu.pipeline.encode_jpeg(random.integers(0, 256, (32, 32, 3), "uint8"))
            label = {"id": f"{split}{index}".encode()} if split == "test" else {"class": int(random.integers(0, 5))}
            rows.append(tpu.pipeline.encode_example({"image": image, **label}))
        tpu.pipeline.write_records(flowers / f"{split}00-{count}.tfrec", rows)
    for index in range(20):
        content = tpu.pipeline.encode_png(random.integers(0, 256, (24, 24, 3), "uint8"))
        (images / f"{index}.png").write_bytes(content)
    table = np.concatenate([random.integers(0, 10, (200, 1)), random.integers(0, 256, (200, 64))], axis=1)
    np.savetxt(folder / "data" / "digits.csv", table, fmt="%d", delimiter=",")
