"""An operation by the names of its author."""

import doctest

from tests.planning.timing.modules import module_of

from anytpu.planning.timing import naming
from anytpu.planning.timing.naming import user_name


def called(metadata: str, name: str = "fusion.312") -> str:
    module = module_of(
        f"""%a = f32[1024,256]{{1,0:T(8,128)}} parameter(0)
        ROOT %{name} = f32[1024,256]{{1,0:T(8,128)}} negate(%a){metadata}"""
    )
    return user_name(module, module.entry.instructions[name])


def test_the_primitive_and_the_layer():
    assert called(', metadata={op_name="jit(step)/jvp(router)/sort"}') == "sort of 'router'"
    assert called(', metadata={op_name="jit(step)/transpose(jvp(router))/scatter-add"}') == (
        "scatter-add of 'router', backward"
    )
    assert called(', metadata={op_name="jit(step)/router/bd,df->bf"}') == "fusion.312 of 'router'"


def test_the_name_of_the_compiler_where_no_other_is_known():
    assert called("") == "fusion.312"


def test_the_examples_of_the_docstrings_run():
    assert doctest.testmod(naming).failed == 0
