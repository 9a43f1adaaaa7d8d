"""The makers that turn Keras models and estimators into Programs, for `program.of`.

Rule: `claims` loads neither Keras nor the training code.
"""

from __future__ import annotations

from typing import Any, final

from anytpu.errors import ProgramError


@final
class KerasMaker:
    """Makes Programs of Keras models."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is a Keras model, without importing Keras."""
        return any(cls.__module__.startswith("keras.") and cls.__name__ == "Model" for cls in type(job).__mro__)

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool = False,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
    ) -> Any:
        """Return the Program of a training step or of a prediction; see `program_of_model`.

        Raises:
            ProgramError: `program_of_model` raises it, or input specs have a layout other than data-parallel.
        """
        from anytpu.train.batch_specs import refuse_other_layouts
        from anytpu.train.model_program import program_of_model

        refuse_other_layouts(f"the model {job.name!r}", input_specs)
        return program_of_model(job, input_specs, mode, tensors, batch_size, precision)

    def repeats_of(self, job: Any) -> Any:
        """Return the equal blocks of a model, or None; see `anytpu.program.makers.repeats_of`."""
        from anytpu.train.numbered_blocks import numbered_repeats_of
        from anytpu.train.repeats import repeats_of

        return repeats_of(job) or numbered_repeats_of(job)

    def variant_of(self, job: Any, change: str, count: int) -> Any:
        """Return a model with a change; see `anytpu.program.makers.variant_of`."""
        from anytpu.train.variants import accumulating, with_lora

        return accumulating(job, count) if change == "accumulation" else with_lora(job, count)


@final
class EstimatorMaker:
    """Makes Programs of estimators."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is a TPUEstimator, without importing the class."""
        return type(job).__name__ == "TPUEstimator" and type(job).__module__.startswith("anytpu.")

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool = False,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
    ) -> Any:
        """Return the Program of a step of training (mode "train") or of a prediction ("infer").

        Args:
            job: the estimator.
            input_specs: specs or arrays of a global batch: `(features, labels)` for "train", features for "infer".
            mode: "train" or "infer".
            tensors: whether to copy the values of the variables into the Program.
            batch_size: number of rows that replaces that of each leaf of `input_specs`; None keeps theirs.
            precision: must be None; the model_fn decides the precision.

        Raises:
            ProgramError: `input_specs` is None, has a layout other than data-parallel, or `precision` is not None.
            EstimatorError: mode is "train", and the estimator has embedding tables.
        """
        from anytpu.train.batch_specs import refuse_other_layouts, with_batch_size

        if precision is not None:
            raise ProgramError(
                f"a TPUEstimator computes in the precision that its model_fn chooses, and cannot be made again with "
                f"precision={precision!r}: cast in the model_fn, under tpu.bfloat16_scope() for example"
            )
        if input_specs is not None:
            refuse_other_layouts("a TPUEstimator", input_specs)
            if batch_size is not None:
                input_specs = with_batch_size(input_specs, batch_size)
        return job.program(input_specs, mode, tensors)


KERAS_MAKER = KerasMaker()
"""The entry point "keras" of the group "anytpu.programs"."""

ESTIMATOR_MAKER = EstimatorMaker()
"""The entry point "estimator" of the group "anytpu.programs"."""
