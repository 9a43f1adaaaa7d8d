"""`Bounds`: what was written so far, and where the memories end.

Rule: a read of what nothing wrote and an address outside of a memory are hazards. Nothing is ever unwritten, so a read
that was found good once is good for ever.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.image import Image
from anytpu.chip.machine.steps import Feed, Plane
from anytpu.chip.machine.windows import cover
from anytpu.errors import HazardError


class Bounds:
    """The extent of the memories of an image's chip, and which parts of them hold something."""

    def __init__(self, image: Image):
        self._image = image
        self._buffer = np.zeros(image.design.buffer_units, bool)
        self._accumulators = np.zeros(image.design.accumulator_rows, bool)
        self._tables: dict[int, bool] = {}
        self._good: set[tuple[Feed, int]] = set()
        self._where = ""

    def begin(self, number: int, name: str) -> None:
        """Remember which instruction is looked at, for the messages."""
        self._where = f"Instruction {number} ({name})"

    def hazard(self, text: str) -> HazardError:
        """Return the error that says what is wrong with the instruction."""
        return HazardError(f"{self._where} {text}.")

    def transfer(self, host_address: int, address: int, units: int, inwards: bool) -> None:
        """Check a transfer between the host's buffer and the Unified Buffer, and mark what it writes."""
        if host_address + units * UNIT_BYTES > self._image.host_bytes:
            raise self.hazard(
                f"reaches byte {host_address + units * UNIT_BYTES} of the host's buffer of {self._image.host_bytes}"
            )
        part = self._units(address, units)
        if inwards:
            self._buffer[part] = True
        elif not self._buffer[part].all():
            raise self._unwritten(address + int(np.argmin(self._buffer[part])))

    def weights(self, blocks: list[int], size_bytes: int) -> None:
        """Check that what starts at each of the blocks, of so many bytes, lies in the Weight Memory."""
        for block in blocks:
            stop, there = block * BLOCK_BYTES + size_bytes, len(self._image.weights)
            if stop > there:
                raise self.hazard(f"reaches byte {stop} of the Weight Memory, of which the image has {there}")

    def parameters(self, blocks: list[int]) -> None:
        """Check that the multipliers of each block of parameters are finite numbers."""
        lanes = self._image.design.array
        for block in blocks:
            first = block * BLOCK_BYTES + 4 * lanes
            multipliers = self._image.weights[first : first + 4 * lanes].view("<f4")
            if not np.isfinite(multipliers).all():
                lane = int(np.argmin(np.isfinite(multipliers)))
                raise self.hazard(f"finds the multiplier {float(multipliers[lane])!r} for lane {lane} in block {block}")

    def read_accumulators(self, first: int, rows: int) -> None:
        """Check that rows of the accumulators hold something."""
        self._rows(first, rows)
        written = self._accumulators[first : first + rows]
        if not written.all():
            raise self.hazard(
                f"reads row {first + int(np.argmin(written))} of the accumulators, which nothing has written"
            )

    def write_accumulators(self, first: int, rows: int) -> None:
        """Mark rows of the accumulators as written."""
        self._rows(first, rows)
        self._accumulators[first : first + rows] = True

    def read_table(self, slot: int, wide: bool) -> None:
        """Check that a table was loaded, and of the width that is looked up."""
        if slot not in self._tables:
            raise self.hazard(f"looks up table {slot}, which nothing has loaded")
        if self._tables[slot] != wide:
            bits = ("8", "16")
            raise self.hazard(f"looks up table {slot} of {bits[not wide]} bits for a result of {bits[wide]} bits")

    def write_tables(self, slots: range, wide: bool) -> None:
        """Mark tables as loaded."""
        for slot in slots:
            if slot > 255:
                raise self.hazard(f"loads table {slot}; the last is 255")
            self._tables[slot] = wide

    def read_feed(self, feed: Feed, rows: int) -> None:
        """Check that all that a pass of `rows` rows reads holds something."""
        if (feed, rows) in self._good:
            return
        plane = feed.plane
        if plane.pitch == 0:
            raise self.hazard("needs register PITCH (or SECOND_PITCH), which is 0")
        used = -(-feed.lanes // UNIT_BYTES)
        patches, _ = cover(feed.window, rows, feed.first_tap, feed.taps)
        for offset in {0, plane.high_offset or 0}:
            for patch in patches:
                first = plane.address + offset + patch.source_row * plane.pitch
                last = first + used
                last += sum(
                    (n - 1) * step * plane.pitch for n, step in zip(patch.shape, patch.source_steps, strict=True)
                )
                self._units(first, last - first)
                strides = (*(step * plane.pitch for step in patch.source_steps), 1)
                written = np.ndarray((*patch.shape, used), bool, self._buffer, first, strides)  # pyright: ignore
                if not written.all():
                    where = np.unravel_index(int(np.argmin(written)), written.shape)
                    unit = first + sum(int(i) * stride for i, stride in zip(where, strides, strict=True))
                    raise self._unwritten(unit)
        self._good.add((feed, rows))

    def write_rows(self, plane: Plane, rows: int) -> None:
        """Mark rows of a plane as written."""
        if plane.pitch == 0:
            raise self.hazard("needs register OUT_PITCH, which is 0")
        for offset in {0, plane.high_offset or 0}:
            self._buffer[self._units(plane.address + offset, rows * plane.pitch)] = True

    def _units(self, address: int, units: int) -> slice:
        if address < 0 or address + units > len(self._buffer):
            raise self.hazard(f"reaches unit {address + units} of the Unified Buffer of {len(self._buffer)}")
        return slice(address, address + units)

    def _rows(self, first: int, rows: int) -> None:
        if first + rows > len(self._accumulators):
            raise self.hazard(f"reaches row {first + rows} of the accumulators, which have {len(self._accumulators)}")

    def _unwritten(self, unit: int) -> HazardError:
        return self.hazard(f"reads unit {unit} of the Unified Buffer, which nothing has written")
