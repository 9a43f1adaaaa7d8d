"""The makers of Programs for Flax NNX, Equinox and PyTorch.

Idea: a step of these frameworks takes modules, optimizers and arrays. Each framework's file makes a pure step
`(state, batch) -> (state, outputs)` of it, and the rest is that of a JAX function.

Rule: `claims` loads neither framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from anytpu.errors import ProgramError
from anytpu.program.function import FUNCTION_MAKER
from anytpu.program.program import Program, Tree
from anytpu.program.pure_step import PureStep


class FrameworkMaker:
    """Makes Programs of the jobs of a framework: compiled steps, models, and (model, optimizer, loss)."""

    def pure_step(self, job: Any, input_specs: Any, mode: str) -> PureStep:
        """Return the pure step of a job."""
        raise NotImplementedError

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool = False,
        *,
        batch_size: int | None = None,
        batch_axis: Tree = None,
    ) -> Program:
        """Return the Program of a step.

        Args:
            job: a compiled step, a model for `mode` "infer", or a triple (model, optimizer, loss).
            input_specs: the arguments of the step: modules and optimizers, and arrays or their specs. For a model or a
                triple: those of the batch alone.
            mode: "train" or "infer".
            tensors: include the values of the state.
            batch_size: number of rows of each array of the batch; None: as in `input_specs`.
            batch_axis: the example axis, as `program.of` takes it.

        Raises:
            ProgramError: the arguments are missing or do not fit the step, or the step is not pure; the message says
                what to type.
        """
        name = _name_of(job)
        if input_specs is None:
            raise ProgramError(
                f"{name!r} needs input_specs: the arguments of the step, such as (model, optimizer, x, y); for a model "
                "or (model, optimizer, loss) those of the batch, such as (x, y)"
            )
        arguments = input_specs if isinstance(input_specs, tuple | list) else (input_specs,)
        pure = self.pure_step(job, tuple(arguments), mode)

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            return pure.step(state, batch)

        step.__name__ = name
        state = pure.state
        if tensors:  # A framework may change an array in place later, as PyTorch does.
            state = {key: np.array(value) if isinstance(value, np.ndarray) else value for key, value in state.items()}
        program = FUNCTION_MAKER.make(
            step, (state, pure.batch), mode, tensors, batch_size=batch_size, batch_axis=batch_axis
        )
        names = tuple(sorted(pure.state))
        return dataclasses.replace(
            program,
            state_names=names,
            state_kinds=tuple(pure.kinds[array_name] for array_name in names),
            notes=(*pure.notes, *program.notes),
        )


_NNX_MODULE = "flax.nnx.module", "Module"
_NNX_STEP = "flax.nnx.transforms.compilation", "JitWrapped"
_TUNIX_TRAINER = "tunix.sft.peft_trainer", "PeftTrainer"


@final
class NNXMaker(FrameworkMaker):
    """Makes Programs of `nnx.jit` steps, `nnx.Module` models, (model, optimizer, loss), and trainers of Tunix."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is of Flax NNX."""
        first = job[0] if isinstance(job, tuple) and len(job) == 3 else job
        kinds = [_NNX_STEP, _TUNIX_TRAINER]
        return _is_of(first, *_NNX_MODULE) or any(_is_of(job, *kind) for kind in kinds)

    def pure_step(self, job: Any, input_specs: Any, mode: str) -> PureStep:
        """Return the pure step of a job of Flax NNX."""
        from anytpu.program import nnx_steps

        name = _name_of(job)
        if isinstance(job, tuple):
            model, optimizer, loss = job
            _check_mode(name, mode, "train")
            step = nnx_steps.training_step_of(name, loss)
            return nnx_steps.pure_step_of(name, step, (model, optimizer, *input_specs))
        if _is_of(job, *_TUNIX_TRAINER):
            if mode != "train":
                raise ProgramError(
                    f"{name!r} cannot be planned with mode={mode!r}. A trainer is a training step: leave "
                    'mode="infer" out, or give its model'
                )
            step = job.create_train_step_fn()
            return nnx_steps.pure_step_of(name, step, (job.model, job.optimizer, *input_specs))
        if _is_of(job, *_NNX_MODULE):
            _check_mode(name, mode, "infer")
            return nnx_steps.pure_step_of(name, lambda model, *batch: model(*batch), (job, *input_specs))
        return nnx_steps.pure_step_of(name, job.fun, input_specs)


@final
class EquinoxMaker(FrameworkMaker):
    """Makes Programs of `equinox.filter_jit` steps and of Equinox models."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is of Equinox."""
        return _is_of(job, "equinox._jit", "_JitWrapper") or _is_of(job, "equinox._module._module", "Module")

    def pure_step(self, job: Any, input_specs: Any, mode: str) -> PureStep:
        """Return the pure step of a job of Equinox."""
        from anytpu.program import equinox_steps

        name = _name_of(job)
        if _is_of(job, "equinox._jit", "_JitWrapper"):
            return equinox_steps.pure_step_of(name, job.__wrapped__, input_specs)
        _check_mode(name, mode, "infer")
        return equinox_steps.pure_step_of(name, equinox_steps.inference_step, (job, *input_specs), has_fixed_model=True)


@final
class TorchMaker(FrameworkMaker):
    """Makes Programs of `torch.nn.Module` models, and (model, optimizer, loss)."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is of PyTorch."""
        return _is_of(job[0] if isinstance(job, tuple) and len(job) == 3 else job, "torch.nn.modules.module", "Module")

    def pure_step(self, job: Any, input_specs: Any, mode: str) -> PureStep:
        """Return the pure step of a job of PyTorch."""
        from anytpu.program import torch_steps

        name = _name_of(job)
        _check_mode(name, mode, "train" if isinstance(job, tuple) else "infer")
        model, optimizer, loss = job if isinstance(job, tuple) else (job, None, None)
        return torch_steps.pure_step_of(name, model, input_specs, optimizer, loss)


NNX_MAKER = NNXMaker()
"""The entry point "flax" of the group "anytpu.programs"."""

EQUINOX_MAKER = EquinoxMaker()
"""The entry point "equinox" of the group "anytpu.programs"."""

TORCH_MAKER = TorchMaker()
"""The entry point "torch" of the group "anytpu.programs"."""


def _is_of(value: Any, module: str, name: str) -> bool:
    return any(cls.__module__ == module and cls.__name__ == name for cls in type(value).__mro__)


def _check_mode(name: str, mode: str, needed: str) -> None:
    if mode != needed:
        how = {
            "infer": 'A model alone has no training step: give mode="infer", or the triple (model, optimizer, loss)',
            "train": 'A triple (model, optimizer, loss) is a training step: leave mode="infer" out, or give the model',
        }
        raise ProgramError(f"{name!r} cannot be planned with mode={mode!r}. {how[needed]}")


def _name_of(job: Any) -> str:
    if isinstance(job, tuple):
        return type(job[0]).__name__
    function: Sequence[Any] = [getattr(job, attribute, None) for attribute in ("fun", "__wrapped__")]
    return next((each.__name__ for each in function if hasattr(each, "__name__")), type(job).__name__)
