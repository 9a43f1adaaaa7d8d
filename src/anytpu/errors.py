"""The exception hierarchy of anytpu.

Idea: `AnyTPUError` catches every error that anytpu raises on purpose. Each class also derives from the built-in that
the TensorFlow TPU systems raised, so existing handlers keep working. Examples are `ValueError` when no TPU was found,
and `RuntimeError` for a misused strategy.

Rule: a message states the fault with the value, the expected value, and the code or command to type next.
"""


class AnyTPUError(Exception):
    """The root of the tree: every error that anytpu raises on purpose."""


class SettingError(AnyTPUError, ValueError):
    """An argument, an environment variable or a setting has an invalid value."""


class SettingTypeError(SettingError, TypeError):
    """An argument has an unsupported type. It is also a `TypeError`, as in TensorFlow."""


class TPUNotFoundError(AnyTPUError, ValueError):
    """No TPU, or no accelerator of the requested kind, was found. It is also a `ValueError`, as in TensorFlow."""


class UnknownTPUError(AnyTPUError, ValueError):
    """The name does not denote an existing TPU."""


class DataError(AnyTPUError, ValueError):
    """The training data cannot be used: its shapes, its types or its length."""


class IndivisibleError(DataError, AssertionError):
    """The batch of a strict strategy is not divisible by its cores. Also an `AssertionError`, as in TensorFlow."""


class DataExhaustedError(DataError):
    """A dataset ended before the requested number of steps."""


class RecordError(DataError):
    """A record cannot be read, parsed or written: the message names the file, the record and the byte where it can."""


class FileError(AnyTPUError, OSError):
    """A file cannot be found, opened, read or written, on this machine or in a bucket."""


class DamageError(FileError):
    """A checkpoint differs from the one that was written: the message names the file or the array."""


class StrategyError(AnyTPUError, RuntimeError):
    """A strategy is used in a wrong place: after shutdown, mixed with another, outside its scope."""


class ReplicaError(AnyTPUError, ValueError):
    """A step cannot be computed across replicas: a value differs, is already summed, or mixes pads with rows."""


class PerReplicaError(ReplicaError, TypeError):
    """A value of each replica is used as one array. It is also a `TypeError`, as in TensorFlow."""


class NaNLossError(AnyTPUError, ArithmeticError):
    """The loss became NaN or infinite, and `on_nan="raise"` is set."""


class SmokeTestError(AnyTPUError, AssertionError):
    """A smoke test failed: a step, a weight, or the plan of the real model. It is also an `AssertionError`."""


class EstimatorError(AnyTPUError, ValueError):
    """The result of a model_fn or an input_fn of a TPUEstimator is invalid."""


class ProgramError(AnyTPUError, ValueError):
    """A Program cannot be made, written, read or lowered."""


class BackendError(AnyTPUError, RuntimeError):
    """A backend cannot be opened, or failed while it compiled or ran a Program."""


class WorkerError(BackendError):
    """A worker cannot be started, cannot be reached, or refuses this client."""


class WorkerLostError(WorkerError):
    """A session with a worker ended, because the worker, its child or the connection failed; its values are lost."""


class HostsError(AnyTPUError, RuntimeError):
    """The hosts of a job cannot join, do not answer one another, or run different programs or data."""


class HandleError(BackendError, TypeError):
    """A backend handle is used as an array. Only `backend.get` returns the array."""


class PortError(AnyTPUError, ValueError):
    """A program cannot be ported: it cannot be read, is not Python, or already has a backup."""


class PlanError(AnyTPUError, RuntimeError):
    """A program cannot be planned: the compiler rejected it, crashed, timed out, or is not installed.

    Attributes:
        compiler_message: the compiler's whole message about a program that it rejected; "" otherwise.
        place: origin of the rejected operation, "the operation 'dot_general', at model.py:12 (call)"; "" if not known.
    """

    compiler_message: str = ""
    place: str = ""


class NoAnswerError(PlanError):
    """The TPU compiler exceeded its time or memory limit for a program, and was stopped."""


class CompilerMissingError(PlanError):
    """The TPU compiler, libtpu, is not installed, or does not exist for this platform."""


class ChipError(AnyTPUError, ValueError):
    """A model cannot be compiled for, or run on, the first TPU: the base class of `chip`'s errors."""


class QuantizationError(ChipError):
    """A model, or a layer of it, cannot be quantized; the message names the layer."""


class CalibrationError(ChipError):
    """The calibration examples are missing or invalid."""


class CapacityError(ChipError):
    """A program exceeds the capacity of one of the chip's memories; the message names the layer and the bytes."""


class HostStepError(ChipError):
    """A host step produced a NaN or an infinity; the message names the row of the input.

    Attributes:
        made: the start of the message: the value and the step that produced it.
        row: index of the input row.
        reason: the rest of the message.
    """

    def __init__(self, made: str, row: int, reason: str):
        super().__init__(f"{made} in row {row}{reason}")
        self.made, self.row, self.reason = made, row, reason


class AssemblyError(ChipError):
    """A line of assembly cannot be parsed; the message names the line and the column."""


class ChipFileError(ChipError):
    """A file is not a chip program, or was truncated, altered, or written by a newer version."""


class HazardError(ChipError):
    """A chip program reads unwritten memory, or has a data hazard, so its results depend on timing.

    The message names the instruction or the tensor.
    """
