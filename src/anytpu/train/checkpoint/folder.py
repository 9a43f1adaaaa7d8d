"""`Checkpoints`: numbered states of a training run in a folder.

Idea: a checkpoint has the value of each variable by name: weights, optimizer slots, random seeds and the step. It also
has the state of the host, such as the position in the data. A run resumed from a checkpoint computes the same results
as an uninterrupted run.

Rule: all data read is checked against the digests in the manifest. A damaged checkpoint is reported, and the previous
one is used. If none is whole, there is an error, never a start from new values. One job at a time writes to a folder.
Other files in the folder are not touched. Of several hosts, host 0 writes, and chooses the checkpoint that all read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from anytpu._restarts import report_step
from anytpu.engine.hosts import Hosts, current_hosts
from anytpu.errors import DamageError, FileError
from anytpu.pipeline.remote_file import is_url
from anytpu.train.checkpoint.arrays import Sink, read_arrays, write_arrays
from anytpu.train.checkpoint.bucket_store import BucketStore
from anytpu.train.checkpoint.folder_store import FolderStore
from anytpu.train.checkpoint.manifest import NAME, ArrayForm, CheckpointManifest, Json, from_json, to_json
from anytpu.train.checkpoint.store import ARRAYS, Store, number_of
from anytpu.units import format_bytes

LOG = logging.getLogger("anytpu")

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, read and checked.

    Attributes:
        step: step at which the checkpoint was saved.
        values: the arrays by name.
        forms: shape and dtype of each array by name, and whether it is a trainable weight.
        host: the state that is not an array, plain JSON.
        folder: path or URL of the folder of all checkpoints.
    """

    step: int
    values: dict[str, np.ndarray]
    forms: dict[str, ArrayForm]
    host: Json
    folder: str

    @property
    def where(self) -> str:
        """Path or URL of the checkpoint."""
        return f"{self.folder}/{self.step}"


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: path of the folder, or its URL in a bucket. It is made when the first checkpoint is saved.
        keep: number of newest checkpoints to keep; None keeps all.

    Attributes:
        folder: the absolute path, or the URL.

    Raises:
        FileError: the URL is of an unknown kind, or its package is not installed.

    Example:
        >>> checkpoints = Checkpoints(folder)
        >>> checkpoints.save(3, {"kernel": np.zeros((2, 3), "float32")})
        >>> checkpoints.load(3).values["kernel"].shape
        (2, 3)
    """

    def __init__(self, folder: str | Path, keep: int | None = None) -> None:
        self._store = _store_at(folder)
        self.folder = self._store.name
        self._keep = keep

    @property
    def job(self) -> Hosts:
        """The hosts of the job; host 0 writes."""
        return current_hosts()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints with a manifest, oldest first, without checking them."""
        return [step for step, has_manifest in self._steps().items() if has_manifest]

    def hosts(self) -> Iterator[tuple[int, Json]]:
        """Yield the step and the state of the host of each checkpoint whose manifest is whole, oldest first."""
        for step in self.steps():
            with contextlib.suppress(FileError):
                yield step, self._manifest(step).host

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint that host 0 sees, or None."""
        newest = next(reversed(self.steps()), -1) if self.job.is_first else -1
        step = self.job.first(newest + 1) - 1
        return None if step < 0 else step

    def path(self, step: int) -> str:
        """Return the path or the URL of a checkpoint."""
        return f"{self.folder}/{step}"

    def saved(self, step: int) -> tuple[float, int]:
        """Return the time when a checkpoint was saved, in seconds since 1970, and the size of its files in bytes."""
        return self._store.saved(step)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder against other writers, and delete the incomplete folders of killed writers.

        Raises:
            FileError: another job writes to the folder, or the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            if self.job.is_first:
                with self._explained("checkpoints cannot be kept"):
                    stack.enter_context(self._store.writing())
            yield

    def check_room(self, size_bytes: int) -> None:
        """Check that the disk has room for a checkpoint, before hours of training depend on it.

        Raises:
            FileError: the disk has too little room.
        """
        free_bytes = self._store.free_bytes() if self.job.is_first else None
        if free_bytes is not None and free_bytes < size_bytes:
            raise FileError(
                f"the disk of {self.folder!r} has {format_bytes(free_bytes)} free, and a checkpoint takes "
                f"{format_bytes(size_bytes)}. Make room, or choose another folder"
            )

    def save(
        self,
        step: int,
        arrays: Mapping[str, np.ndarray],
        *,
        trained: Collection[str] = (),
        optimizer_state: Collection[str] = (),
        host: Json = None,
        also_keep: Collection[int] = (),
    ) -> None:
        """Save a checkpoint and flush it to the disk. An existing checkpoint of the same step is kept.

        Args:
            step: step of the checkpoint.
            arrays: arrays by name.
            trained: names of the arrays that are trainable weights.
            optimizer_state: names of the arrays that belong to an optimizer.
            host: the state that is not an array, as plain JSON.
            also_keep: steps whose checkpoints are kept besides the newest.

        Raises:
            FileError: the checkpoint cannot be written, or its path exists and is not a checkpoint. Earlier checkpoints
                do not change.
        """
        if not self.job.is_first or step in self.steps():
            return
        if self._store.is_taken(step):
            raise FileError(
                f"the checkpoint of step {step} cannot be written: {self.path(step)!r} exists already, and it is not "
                "a checkpoint. Rename it, or choose another folder"
            )

        def write(sink: Sink) -> bytes:
            stored = write_arrays(sink, arrays, trained, optimizer_state)
            return to_json(CheckpointManifest(step, stored, host))

        with self._explained(f"the checkpoint of step {step} cannot be written"):
            self._store.write(step, write)
            report_step(step)
            # Old checkpoints are deleted only after the new one is on the disk.
            for old in self.steps()[: -self._keep] if self._keep is not None else ():
                if old not in also_keep:
                    self._store.delete(old)

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint and check all of it.

        Raises:
            DamageError: there is no checkpoint of this step, or it was changed.
            FileError: the checkpoint cannot be read for another reason, or has a newer format.
        """
        try:
            return self.read(step)
        except FileError as error:
            raise self._explained_read(step, error) from None

    def read(self, step: int) -> Checkpoint:
        """Do as `load`, with errors that tell the reason only."""
        manifest = self._manifest(step)
        with self._store.arrays(step) as (source, size_bytes):
            if size_bytes != manifest.size_bytes:
                raise DamageError(f"its {ARRAYS} has {size_bytes:,} bytes, and {manifest.size_bytes:,} were written")
            values = read_arrays(source, manifest)
        forms = {array.name: array.form for array in manifest.arrays}
        return Checkpoint(step, values, forms, manifest.host, self.folder)

    def load_newest(self) -> Checkpoint | None:
        """Read the newest whole checkpoint, and log which newer ones are damaged. None if the folder has none.

        Raises:
            DamageError: the folder has checkpoints, and none is whole.
            FileError: a checkpoint cannot be read or has a newer format. It may be whole, so no earlier one is used. Or
                this host does not see the checkpoint that host 0 reads.
        """
        checkpoint = self._load_newest() if self.job.is_first else None
        # Host 0 chooses the checkpoint for all hosts; 0 stands for none.
        step = self.job.first(0 if checkpoint is None else checkpoint.step + 1) - 1
        if self.job.is_first or step < 0:
            return checkpoint
        try:
            return self.read(step)
        except FileError as error:
            raise FileError(
                f"host {self.job.index} cannot read the checkpoint of step {step} that host 0 reads: {error}. Every "
                f"host must see the same folder {self.folder!r}: use a shared file system or a bucket"
            ) from None

    def _load_newest(self) -> Checkpoint | None:
        # 1. Try the checkpoints from the newest on. The list is read again each time, because a job may write there.
        damaged: dict[int, str] = {}
        while left := [step for step in self.numbered() if step not in damaged]:
            try:
                checkpoint = self.read(left[-1])
            except DamageError as error:
                damaged[left[-1]] = str(error)
                continue
            except FileError as error:
                raise self._explained_read(left[-1], error) from None
            # Meanwhile a job that trains here may have deleted one of them as its oldest checkpoint.
            newer = sorted(set(damaged) & set(self.numbered()))
            for step in newer:
                LOG.warning(
                    "The checkpoint of step %d in %s is damaged and is not used: %s. That of step %d is used",
                    step,
                    self.folder,
                    damaged[step],
                    checkpoint.step,
                )
            self._warn_of_empty(checkpoint.step)
            return checkpoint
        # 2. None is whole. Report those that are still there.
        still = sorted(set(damaged) & set(self.numbered()))
        if not still:
            self._warn_of_empty(None)
            return None
        listed = "; ".join(f"step {step}: {damaged[step]}" for step in still)
        raise DamageError(
            f"no checkpoint in {self.folder!r} is whole: {listed}. To start anew, choose another folder, or "
            "delete this one"
        )

    def set_aside(self, after: int) -> None:
        """Rename the damaged checkpoints after a step, so that new checkpoints can be saved under their numbers.

        Args:
            after: step of the newest whole checkpoint.

        Raises:
            FileError: a checkpoint cannot be read or has a newer format, so it may be whole; or it cannot be renamed.
        """
        for step in [step for step in self.numbered() if step > after and self.job.is_first]:
            # Read for its errors: a checkpoint that cannot be read now, or has a newer format, may be whole and keeps
            # its name.
            with contextlib.suppress(DamageError):
                self.load(step)
            with self._explained(f"the damaged checkpoint of step {step} cannot be renamed"):
                LOG.warning("The damaged checkpoint of step %d is called %s now", step, self._store.set_aside(step))

    def numbered(self) -> list[int]:
        """Return the steps of the checkpoints, whole or damaged."""
        return list(self._steps())

    def _steps(self) -> dict[int, bool]:
        try:
            return self._store.steps()
        except FileError:
            raise
        except OSError as error:
            # Not an empty list: there may be checkpoints, and training must not start again from new values.
            raise FileError(
                f"the checkpoints in {self.folder!r} cannot be read: {error.strerror or error}. Get permission to "
                "read there, or choose another folder"
            ) from None

    def _manifest(self, step: int) -> CheckpointManifest:
        """Read the manifest of a checkpoint.

        Raises:
            DamageError: the manifest is missing, was changed, or belongs to another step.
            FileError: the manifest cannot be read for another reason, or has a newer format.
        """
        manifest = from_json(self._store.read_manifest(step))
        if manifest.step != step:
            raise DamageError(f"its {NAME} is that of step {manifest.step}")
        return manifest

    def _explained_read(self, step: int, error: FileError) -> FileError:
        existing = ", ".join(map(str, self.steps())) or "none"
        return type(error)(
            f"the checkpoint of step {step} in {self.folder!r} cannot be used: {error!s:.500}. Steps with a "
            f"checkpoint: {existing}"
        )

    def _warn_of_empty(self, used: int | None) -> None:
        for step in self._store.empty_steps():
            if used is None or step > used:
                LOG.warning(
                    "The folder %s is empty. If it was a checkpoint, its files were deleted. %s is used",
                    self.path(step),
                    "None" if used is None else f"That of step {used}",
                )

    @contextlib.contextmanager
    def _explained(self, failure: str) -> Iterator[None]:
        """Turn an `OSError` into a `FileError` that says what to do."""
        try:
            yield
        except FileError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            # "from None": the text already contains the reason, so the user reads one paragraph.
            raise FileError(f"{failure} in {self.folder!r}: {reason}. {self._advice(error)}") from None

    def _advice(self, error: OSError) -> str:
        latest = None
        with contextlib.suppress(FileError):
            # Not `latest`, which all hosts must call: this host may be alone in its error, and in a thread.
            latest = next(reversed(self.steps()), None)
        newest = "" if latest is None else f" The newest checkpoint is that of step {latest}"
        if error.errno in _NO_ROOM:
            return f"Make room, keep fewer checkpoints, or choose another folder.{newest}".rstrip(".")
        if isinstance(error, FileExistsError | NotADirectoryError):
            return "The path, or one of its parents, is a file. Choose the path of a folder; it need not exist yet."
        return f"Get permission to write there, or choose another folder.{newest}".rstrip(".")


def checkpoint_at(path: str | Path) -> Checkpoint:
    """Read the checkpoint at a path: a checkpoint's own folder, or a folder of checkpoints, to read the newest whole.

    Raises:
        DamageError: the named checkpoint, or every checkpoint in the folder, is damaged.
        FileError: there is no checkpoint.
    """
    store = _store_at(path)
    parent, _, name = store.name.rpartition("/")
    parent, step, steps = parent or "/", number_of(name), {}
    with contextlib.suppress(OSError):  # Reading the folder below reports the reason.
        steps = _store_at(parent).steps() if step is not None else {}
    if step in steps:
        return Checkpoints(parent).load(step)
    newest = Checkpoints(path).load_newest()
    if newest is None:
        raise FileError(f"there is no checkpoint in {store.name!r}: pass the checkpoint_dir of a fit, or a model_dir")
    return newest


def _store_at(location: str | Path) -> Store:
    if is_url(str(location)):
        return BucketStore(str(location))
    return FolderStore(Path(location).expanduser().absolute())
