from __future__ import annotations

import textwrap

import pytest

from anytpu.migrate.port import ported


def new_text(code: str) -> str:
    outcome = ported(textwrap.dedent(code))
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("import tensorflow as tf", "tf.distribute.TPUStrategy()"),
        ("import tensorflow", "tensorflow.distribute.experimental.TPUStrategy()"),
        ("import tensorflow.compat.v2 as tf2", "tf2.distribute.TPUStrategy()"),
        ("import tensorflow as tf", "tf.compat.v2.distribute.experimental.TPUStrategy()"),
        ("from tensorflow import distribute", "distribute.TPUStrategy()"),
        ("from tensorflow.distribute import TPUStrategy", "TPUStrategy()"),
        ("from tensorflow.distribute.experimental import TPUStrategy as Strategy", "Strategy()"),
        ("from tensorflow.contrib import distribute as d", "d.TPUStrategy()"),
    ],
)
def test_a_name_however_it_is_imported(imported: str, called: str):
    assert new_text(f"{imported}\ns = {called}\n") == "import anytpu as tpu\ns = tpu.TPUStrategy()\n"


def test_a_name_that_is_not_tensorflows_is_left_alone():
    text = """
        import tensorflow as tf


        def other(tf):
            return tf.distribute.TPUStrategy()


        class TPUStrategy: ...


        print(TPUStrategy())
        """
    outcome = ported(textwrap.dedent(text))
    assert "return tf.distribute.TPUStrategy()" in outcome.new
    assert "print(TPUStrategy())" in outcome.new
    assert "import tensorflow" not in outcome.new


def test_another_tpu_in_the_program():
    assert new_text("""\
        import tensorflow as tf
        tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.tpu.experimental.initialize_tpu_system(tpu)
        """) == textwrap.dedent("""\
        import anytpu
        tpu = anytpu.TPUClusterResolver()
        anytpu.initialize_tpu_system(tpu)
        """)


def test_anytpu_that_is_there_already():
    assert new_text("""\
        import anytpu as a
        import tensorflow as tf
        tf.tpu.experimental.initialize_tpu_system()
        """) == textwrap.dedent("""\
        import anytpu as a
        a.initialize_tpu_system()
        """)


def test_kerass_imports_keep_their_names():
    assert new_text("""\
        '''What it does.'''
        from __future__ import annotations
        import os
        # The model.
        from tensorflow import keras
        from tensorflow.keras import layers, backend as K
        from tensorflow.keras.layers import (
            Dense,
            Embedding as E,
        )
        import tensorflow.keras.losses as losses
        from tensorflow.python.keras.models import *
        import tensorflow as tf
        model = keras.Sequential([layers.Input((3,)), Dense(1), E(3, 2, input_length=4)])
        print(K.mean(losses.mse), tf.keras.Model)
        """) == textwrap.dedent("""\
        '''What it does.'''
        from __future__ import annotations
        import os
        # The model.
        import anytpu as tpu
        import keras
        from keras import layers, backend as K
        from keras.layers import Dense, Embedding as E
        import keras.losses as losses
        from keras.models import *
        model = keras.Sequential([layers.Input((3,)), Dense(1), E(3, 2, input_shape=(4,))])
        print(keras.ops.mean(keras.losses.mean_squared_error), keras.Model)
        """)


def test_anytpu_comes_before_keras():
    assert new_text("""\
        import numpy as np
        from keras import layers
        import tensorflow as tf
        strategy = tf.distribute.get_strategy()
        """) == textwrap.dedent("""\
        import numpy as np
        import anytpu as tpu
        from keras import layers
        strategy = tpu.get_strategy()
        """)


def test_an_import_in_a_function_and_one_of_several():
    assert new_text("""\
        import os, tensorflow as tf
        tf.random.set_seed(1)


        def main():
            import tensorflow as tf2

            return tf2.distribute.get_strategy()
        """) == textwrap.dedent("""\
        import anytpu as tpu
        import keras
        import os
        keras.utils.set_random_seed(1)


        def main():

            return tpu.get_strategy()
        """)


def test_tensorflow_stays_while_something_needs_it():
    outcome = ported("import tensorflow as tf\nx = tf.no.such.name(tf.exp(1.0))\n")
    assert outcome.new == (
        "import anytpu as tpu\nimport keras\nimport tensorflow as tf\nx = tf.no.such.name(keras.ops.exp(1.0))\n"
    )
    (finding,) = outcome.findings
    assert (finding.line, finding.old, finding.advice, finding.kind) == (
        2,
        "tf.no.such.name",
        "no counterpart is known: write it with keras.ops, or with NumPy in a function of a data set",
        "by hand",
    )


def test_a_program_without_tensorflow_is_not_touched():
    text = "import tf\n\n\nx=tf.distribute.TPUStrategy( ).numpy()   # odd  spaces\n"
    assert ported(text).new == text


def test_a_class_of_a_private_module_of_the_first_tpus_is_the_public_one():
    outcome = ported("""\
from tensorflow.contrib.tpu.python.tpu import tpu_config
from tensorflow.python.tpu import tpu_estimator
config = tpu_config.RunConfig()
estimator = tpu_estimator.TPUEstimator(model_fn=model_fn, config=config)
""")
    assert outcome.by_hand == ()
    assert (
        outcome.new
        == """\
import anytpu as tpu
config = tpu.RunConfig()
estimator = tpu.TPUEstimator(model_fn=model_fn, config=config)
"""
    )
