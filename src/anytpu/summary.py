"""`tpu.summary`: scalars, histograms, images and text for TensorBoard, by the names of `tf.summary`.

Idea: the functions write to the default writer of the thread, as in TensorFlow 2, and do nothing without one. The
package `tensorboard` makes the records and the event files, also at gs:// and s3://, so TensorFlow is not needed.

    writer = tpu.summary.create_file_writer("logs")
    with writer.as_default():
        tpu.summary.scalar("loss", 0.25, step=1)

`tensorboard --logdir logs` shows them. In a scope, Keras's callback `TensorBoard` writes by these functions too.
Outside of a scope write `tpu.summary.TensorBoard`.

Rule: a summary stands outside of the compiled step, where its value is known. A writer whose disk is full warns once
and writes no more; the training goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from anytpu import _keras, _keras_layers
from anytpu.errors import SettingError

if TYPE_CHECKING:
    from keras.callbacks import TensorBoard as TensorBoard

_COUNT = itertools.count()
_NAMED: dict[tuple[str, str], SummaryWriter] = {}
_FLUSH_MILLIS = 120_000


class _Defaults(threading.local):
    """The writer, the step and the condition of `record_if` of a thread."""

    writer: SummaryWriter | None = None
    step: Any = None
    condition: Any = True


_DEFAULTS = _Defaults()


class SummaryWriter:
    """An event file of TensorBoard. `create_file_writer` makes one.

    Args:
        directory: the folder, or a URL such as gs://bucket/logs.
        suffix: ending of the file's name.
        flush_s: seconds after which the next summary also writes the earlier ones out.

    Raises:
        SettingError: the package tensorboard is not installed.
        OSError: the file cannot be made.
    """

    def __init__(self, directory: str, suffix: str, flush_s: float) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
            from tensorboard.compat.tensorflow_stub.io import gfile

            from anytpu.pipeline.tfrecord import frame
        except ImportError as error:
            raise SettingError(
                "event files of TensorBoard need the package tensorboard: type pip install 'anytpu[tensorboard]'"
            ) from error
        gfile.makedirs(directory)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_COUNT)}{suffix}"
        )
        self._path = os.path.join(directory, name)
        self._file: Any = gfile.GFile(self._path, "wb")
        self._event, self._frame, self._flush_s, self._flushed = Event, frame, flush_s, time.monotonic()
        self._close = weakref.finalize(self, self._file.close)
        self.write(file_version="brain.Event:2")
        self.flush()

    @property
    def is_open(self) -> bool:
        """Whether summaries are written: neither was it closed, nor was its disk full."""
        return self._close.alive

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """Make this the default writer of the block, and `step` the default step unless it is None."""
        before = _DEFAULTS.writer, _DEFAULTS.step
        self.set_as_default(step)
        try:
            yield self
        finally:
            _DEFAULTS.writer, _DEFAULTS.step = before
            self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Make this the default writer of the thread from now on, and `step` the default step unless it is None."""
        _DEFAULTS.writer = self
        if step is not None:
            _DEFAULTS.step = step

    def init(self) -> None:
        """Do nothing: the file is open already."""

    def flush(self) -> None:
        """Write out what was not written yet."""
        if self.is_open:
            with self._warned():
                self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write out the rest and close the file. Later summaries are ignored."""
        with self._warned():
            self._close()

    def write(self, **fields: Any) -> None:
        """Write an `Event` record with these fields, and its time."""
        if not self.is_open:
            return
        with self._warned():
            self._file.write(self._frame(self._event(wall_time=time.time(), **fields).SerializeToString()))
        if time.monotonic() - self._flushed > self._flush_s:
            self.flush()

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._close.detach()
            warnings.warn(
                f"The event file {self._path} cannot be written: {error}. "
                "It gets no more summaries; the program goes on.",
                stacklevel=6,
            )


def create_file_writer(
    logdir: str | os.PathLike,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """Make an event file in a folder.

    Args:
        logdir: the folder, or a URL such as gs://bucket/logs. It is made.
        max_queue: has no effect: each summary is written at once.
        flush_millis: milliseconds after which the next summary also writes the earlier ones out (default: 120,000).
        filename_suffix: ending of the file's name (default: ".v2", as TensorFlow's).
        name: a second call with the same folder and name returns the first one's writer, if that is still open.

    Raises:
        SettingError: the package tensorboard is not installed.
        OSError: the file cannot be made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create_file_writer(folder).as_default(step=3):
    ...         scalar("loss", 0.25)
    True
    """
    flush_s = (_FLUSH_MILLIS if flush_millis is None else flush_millis) / 1000
    directory, suffix = os.fspath(logdir), ".v2" if filename_suffix is None else filename_suffix
    if name is None:
        return SummaryWriter(directory, suffix, flush_s)
    if (directory, name) not in _NAMED or not _NAMED[directory, name].is_open:
        _NAMED[directory, name] = SummaryWriter(directory, suffix, flush_s)
    return _NAMED[directory, name]


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write a number. Returns whether it was written.

    Args:
        name: the tag of the summary.
        data: a number, an array of shape (), or a Keras variable.
        step: the step, unless the writer or `experimental.set_step` has one.
        description: what it is, in Markdown.

    Raises:
        SettingError: `data` is not one number, its value is not known yet, or there is no step.
    """
    return _add(name, step, lambda tag: _scalar(tag, _array(name, data), description))


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: str | None = None
) -> bool:
    """Write a histogram of the numbers of an array. Returns whether it was written.

    Args:
        name: the tag of the summary.
        data: an array of any shape.
        step: the step, unless the writer or `experimental.set_step` has one.
        buckets: number of buckets (default: 30).
        description: what it is, in Markdown.

    Raises:
        SettingError: the value of `data` is not known yet, or there is no step.

    Numbers that are not finite are left out, with a warning.
    """
    return _add(name, step, lambda tag: _histogram(tag, _array(name, data), buckets, description))


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None) -> bool:
    """Write pictures. Returns whether they were written.

    Args:
        name: the tag of the summary.
        data: shape (pictures, height, width, channels) with 1 to 4 channels; floats from 0 to 1, or uint8.
        step: the step, unless the writer or `experimental.set_step` has one.
        max_outputs: how many pictures are written at most.
        description: what they are, in Markdown.

    Raises:
        SettingError: `data` is of another shape, its value is not known yet, or there is no step.
    """
    return _add(name, step, lambda tag: _image(tag, data, max_outputs, description))


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write text, shown as Markdown. Returns whether it was written.

    Args:
        name: the tag of the summary.
        data: a str, bytes, or an array of them.
        step: the step, unless the writer or `experimental.set_step` has one.
        description: what it is, in Markdown.

    Raises:
        SettingError: `data` is not text, or there is no step.
    """

    def record(tag: str) -> Any:
        from tensorboard.plugins.text.summary_v2 import text_pb

        if np.asarray(data).dtype.kind not in "USO":
            raise SettingError(f"the summary {name!r} must be text, not {data!r}")
        return text_pb(tag, data, description)

    return _add(name, step, record)


def graph(name: str, model: Any, step: Any = None) -> bool:
    """Write the layers of a built Sequential or functional model, for TensorBoard's page of graphs.

    Args:
        name: has no effect: a run has one graph.
        model: the model.
        step: has no effect.

    Returns:
        whether it was written.
    """
    network = _keras.graph_of(model)
    if not should_record_summaries() or network is None:
        return False
    import keras
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # pyright: ignore[reportAttributeAccessIssue]

    calls = _keras.calls_of(network)
    makers = {id(tensor): operation.name for operation, _, _, outputs in calls for tensor in outputs}
    inputs = [layer for layer in network.operations if isinstance(layer, keras.layers.InputLayer)]
    makers |= {id(layer.output): layer.name for layer in inputs}
    read: dict[str, list[str]] = {operation.name: [] for operation in network.operations}
    for operation, tensors, masks, _ in calls:
        read[operation.name] += [makers[id(tensor)] for tensor in (*tensors, *masks)]
    kinds = {operation.name: type(operation).__name__ for operation in network.operations}
    nodes = [{"name": layer, "op": kinds[layer], "input": names} for layer, names in read.items()]
    assert _DEFAULTS.writer is not None
    _DEFAULTS.writer.write(graph_def=GraphDef(node=nodes).SerializeToString())
    return True


def flush(writer: SummaryWriter | None = None) -> None:
    """Write out what a writer, or the default writer, has not written yet."""
    writer = writer or _DEFAULTS.writer
    if writer is not None:
        writer.flush()


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], Any]) -> Iterator[None]:
    """Write the summaries of the block only if the condition, or what it returns then, is true."""
    before, _DEFAULTS.condition = _DEFAULTS.condition, condition
    try:
        yield
    finally:
        _DEFAULTS.condition = before


def should_record_summaries() -> bool:
    """Return whether a summary would be written now."""
    condition = _DEFAULTS.condition
    return _DEFAULTS.writer is not None and bool(condition() if callable(condition) else condition)


def __getattr__(name: str) -> Any:
    if name != "TensorBoard":
        raise AttributeError(f"anytpu.summary has no name {name!r}; dir(anytpu.summary) lists its names.")
    import keras

    _keras.set_summaries(sys.modules[__name__])
    return keras.callbacks.TensorBoard


class experimental:
    """The default step of the thread."""

    @staticmethod
    def set_step(step: Any) -> None:
        """Set the default step of the thread, or None."""
        _DEFAULTS.step = step

    @staticmethod
    def get_step() -> Any:
        """Return the default step of the thread, or None."""
        return _DEFAULTS.step


def _add(name: str, step: Any, make: Callable[[str], Any]) -> bool:
    """Write the record that `make` returns for a tag: the name, below the scopes of names around."""
    if not should_record_summaries():
        return False
    step = _DEFAULTS.step if step is None else step
    if step is None:
        raise SettingError(
            f"the summary {name!r} has no step: write step=, or `with writer.as_default(step=...)` around it"
        )
    number = np.asarray(getattr(step, "value", step))  # Of a Keras variable.
    if number.shape or number.dtype.kind not in "iu":
        raise SettingError(f"the step of the summary {name!r} must be an integer, not {step!r}")
    assert _DEFAULTS.writer is not None
    record = make(_keras_layers.scope_of_names() + name)
    _DEFAULTS.writer.write(summary=record, step=int(number))
    return True


def _array(name: str, data: Any) -> np.ndarray:
    import jax.core

    data = getattr(data, "value", data)  # Of a Keras variable.
    if isinstance(data, jax.core.Tracer):
        raise SettingError(
            f"the summary {name!r} stands in a compiled step, where its value is not known yet: return the value from "
            "the step, and write the summary after it"
        )
    return np.asarray(data)


def _scalar(name: str, data: np.ndarray, description: str | None) -> Any:
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    if data.shape or data.dtype.kind not in "biufV":
        raise SettingError(f"the summary {name!r} must be one number, not {data.dtype} of shape {data.shape}")
    with np.errstate(over="ignore"):
        return scalar_pb(name, data.astype(np.float32), description)


def _histogram(name: str, data: np.ndarray, buckets: int | None, description: str | None) -> Any:
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb

    is_finite = np.isfinite(data.astype(np.float64))
    if not is_finite.all():
        count = np.count_nonzero(~is_finite)
        warnings.warn(f"The histogram {name!r} leaves out {count} of {data.size} numbers: not finite.", stacklevel=5)
    return histogram_pb(name, data[is_finite], buckets, description)


def _image(name: str, data: Any, max_outputs: int, description: str | None) -> Any:
    import io

    from PIL import Image
    from tensorboard.plugins.image.metadata import create_summary_metadata

    pictures = (
        np.stack([_array(name, picture) for picture in data]) if isinstance(data, list) and data else _array(name, data)
    )
    if pictures.ndim != 4 or not 1 <= pictures.shape[-1] <= 4:
        raise SettingError(
            f"the pictures {name!r} must have shape (pictures, height, width, 1 to 4 channels), not {pictures.shape}"
        )
    if pictures.dtype.kind == "b":
        pictures = pictures * np.uint8(255)
    elif pictures.dtype.kind in "iu" and pictures.dtype != np.uint8:
        raise SettingError(f"the pictures {name!r} must be floats from 0 to 1, or uint8, not {pictures.dtype}")
    elif pictures.dtype != np.uint8:
        # As tf.image.convert_image_dtype with saturate.
        pictures = np.clip(np.nan_to_num(pictures.astype(np.float32)) * 255.5, 0, 255).astype(np.uint8)
    encoded = []
    for picture in pictures[:max_outputs]:
        file = io.BytesIO()
        Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(file, "png")
        encoded.append(file.getvalue())
    height, width = pictures.shape[1:3]
    parts = [str(width).encode(), str(height).encode(), *encoded]
    return _record(name, parts, create_summary_metadata(None, description), (len(parts),))


def _record(tag: str, strings: list[str | bytes], metadata: Any, shape: tuple[int, ...]) -> Any:
    """Return a `Summary` record of strings."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.types_pb2 import DT_STRING  # pyright: ignore[reportAttributeAccessIssue]

    data = [part.encode() if isinstance(part, str) else part for part in strings]
    tensor = TensorProto(dtype=DT_STRING, tensor_shape={"dim": [{"size": size} for size in shape]}, string_val=data)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
