"""Everything that anytpu raises on purpose, as one tree.

Idea: whoever wants to catch "anything of anytpu's" catches `AnyTPUError`; whoever wrote code for the old systems
catches what those raised (`ValueError` when no TPU was found, `RuntimeError` for a misused strategy): each class is
also the built-in that fits it.

Rule: a message says what is wrong (with the value), what was expected, and what to type next.
"""


class AnyTPUError(Exception):
    """The root of the tree: every error that anytpu raises on purpose."""


class SettingError(AnyTPUError, ValueError):
    """An argument, an environment variable or a setting has a value that cannot be used."""


class SettingTypeError(SettingError, TypeError):
    """An argument has a type that cannot be used: a `TypeError` too, as it was of old."""


class TPUNotFoundError(AnyTPUError, ValueError):
    """No TPU, or no accelerator of the kind that was asked for, was found: a `ValueError`, as it was of old."""


class UnknownTPUError(AnyTPUError, ValueError):
    """A TPU was named that does not exist."""


class DataError(AnyTPUError, ValueError):
    """The training data cannot be used: its shapes, its types or its length."""


class IndivisibleError(DataError, AssertionError):
    """A strict strategy was given rows that its cores do not divide: an `AssertionError` too, as it was of old."""


class DataExhaustedError(DataError):
    """A dataset ended before the steps that were asked of it."""


class RecordError(DataError):
    """A record cannot be read, parsed or written: the message names the file, the record and the byte where it can."""


class FileError(AnyTPUError, OSError):
    """A file cannot be found, opened, read or written, on this machine or in a bucket."""


class DamageError(FileError):
    """A checkpoint is not what was written: the message names the file or the array."""


class StrategyError(AnyTPUError, RuntimeError):
    """A strategy is used where it cannot be: after shutdown, mixed with another, outside its scope."""


class ReplicaError(AnyTPUError, ValueError):
    """A value that differs between replicas is used where one value is needed."""


class NaNLossError(AnyTPUError, ArithmeticError):
    """The loss became NaN or infinite, and `on_nan="raise"` was asked for."""


class EstimatorError(AnyTPUError, ValueError):
    """What a model_fn or an input_fn of a TPUEstimator returns, or makes, cannot be used."""


class ProgramError(AnyTPUError, ValueError):
    """A Program cannot be made, written, read or lowered."""


class BackendError(AnyTPUError, RuntimeError):
    """A backend cannot be opened, or failed while it compiled or ran a Program."""


class HandleError(BackendError, TypeError):
    """A handle of a backend is used as if it were an array. Only `backend.get` opens one."""


class PortError(AnyTPUError, ValueError):
    """A program cannot be ported: it cannot be read, is no Python, or has a backup already."""


class PlanError(AnyTPUError, RuntimeError):
    """A program cannot be planned: the compiler refused it, ended or took too long, or is not installed."""


class NoAnswerError(PlanError):
    """The TPU compiler took too much time or memory for a program, and was ended."""


class CompilerMissingError(PlanError):
    """The TPU compiler, libtpu, is not installed, or not for this kind of machine."""


class ChipError(AnyTPUError, ValueError):
    """Something cannot be made into, or run as, a program for the first TPU: the root of what `chip` raises."""


class QuantizationError(ChipError):
    """A model, or a layer of it, cannot be turned into whole numbers; the layer is named."""


class CalibrationError(ChipError):
    """The examples that the ranges are taken from are missing, or cannot be used."""


class CapacityError(ChipError):
    """A program needs more of a memory of the chip than there is; the layer and the bytes are named."""


class HostStepError(ChipError):
    """A step of the host made something that is no number; the row of the input is named.

    Attributes:
        made: what was made by which step, up to the row.
        row: of what went in.
        reason: the rest of the message.
    """

    def __init__(self, made: str, row: int, reason: str):
        super().__init__(f"{made} in row {row}{reason}")
        self.made, self.row, self.reason = made, row, reason


class AssemblyError(ChipError):
    """A line of assembly cannot be read; the line and the column are named."""


class ChipFileError(ChipError):
    """A file is no program for the chip, or was cut short, altered, or written by a newer version."""


class HazardError(ChipError):
    """A program for the chip would give results that depend on luck; the instruction is named."""
