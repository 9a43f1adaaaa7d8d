from __future__ import annotations

import textwrap

import numpy as np
import pytest

from anytpu.migrate.port import ported

ADVICE = (
    "write `loss, grads = tpu.value_and_grad(lambda: keras.ops.mean(model(x)), model.trainable_variables)()` (the body "
    "of the tape becomes a function that returns the loss, and beside it what is used later)"
)


def body_of(code: str) -> str:
    """Return what the porter makes of the body of a function."""
    text = "import tensorflow as tf\n\n\ndef step(x, y):\n" + textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")
    outcome = ported(text + "\n")
    assert outcome.by_hand == (), outcome.by_hand
    assert "import tensorflow" not in outcome.new
    return textwrap.dedent(outcome.new.partition("def step(x, y):\n")[2]).strip("\n")


def refusal_of(code: str) -> str:
    """Return why the porter leaves a tape as it is, having checked that it does."""
    text = "import tensorflow as tf\n\n\ndef step(x, y):\n" + textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")
    outcome = ported(text + "\n")
    assert outcome.new == text + "\n"
    (finding,) = outcome.findings
    assert finding.old.startswith("tf.GradientTape(")
    assert finding.advice.endswith(f"; {ADVICE}")
    return finding.advice.removesuffix(f"; {ADVICE}")


def test_only_the_loss_is_needed():
    assert body_of("""
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        grads = tape.gradient(loss, model.trainable_variables)
        return grads
    """) == textwrap.dedent("""\
        def compute_loss():
            loss = loss_of(model(x), y)
            return loss
        loss, grads = tpu.value_and_grad(compute_loss, model.trainable_variables)()
        return grads""")


def test_what_is_read_later_comes_back_beside_the_loss():
    assert body_of("""
        # Two heads.
        with tf.GradientTape() as tape:
            first, second = model(x)
            per_row = loss_of(first, second, y)
            loss = tf.reduce_sum(per_row) / 8
        seen.update_state(per_row)
        [one, two] = tape.gradient(loss, [a, b])
        return second, one, two
    """) == textwrap.dedent("""\
        # Two heads.
        def compute_loss():
            first, second = model(x)
            per_row = loss_of(first, second, y)
            loss = keras.ops.sum(per_row) / 8
            return loss, (second, per_row)
        (loss, (second, per_row)), [one, two] = tpu.value_and_grad(compute_loss, [a, b], has_aux=True)()
        seen.update_state(per_row)
        return second, one, two""")


def test_a_gradient_that_is_used_where_it_is_asked_for():
    assert body_of("""
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss
    """) == textwrap.dedent("""\
        def compute_loss():
            loss = loss_of(model(x), y)
            return loss
        loss, gradients = tpu.value_and_grad(compute_loss, weights)()
        optimizer.apply_gradients(zip(gradients, weights))
        return loss""")


def test_a_gradient_asked_for_inside_the_block_and_a_loss_that_is_an_expression():
    assert body_of("""
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
            dx, dy = tape.gradient(loss / tf.cast(3, tf.float32), [a, b])
            report(dx)
        return loss, dy
    """) == textwrap.dedent("""\
        def compute_loss():
            loss = loss_of(model(x), y)
            return loss / keras.ops.cast(3, "float32"), loss
        (_, loss), (dx, dy) = tpu.value_and_grad(compute_loss, [a, b], has_aux=True, local=True)()
        report(dx)
        return loss, dy""")


def test_names_that_are_taken():
    assert body_of("""
        gradients = compute_loss = None
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        apply(tape.gradient(loss, weights))
    """) == textwrap.dedent("""\
        gradients = compute_loss = None
        def loss_of_batch():
            loss = loss_of(model(x), y)
            return loss
        loss, all_gradients = tpu.value_and_grad(loss_of_batch, weights)()
        apply(all_gradients)""")


def test_variables_of_a_comprehension_and_a_branch_that_is_complete():
    assert body_of("""
        with tf.GradientTape() as tape:
            if is_large:
                loss = large(x)
            else:
                loss = small(x)
            loss = loss + sum(one for one in model.losses)
        grads = tape.gradient(loss, weights)
    """).endswith("return loss\nloss, grads = tpu.value_and_grad(compute_loss, weights)()")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "with tf.GradientTape(watch_accessed_variables=False) as tape:\n    loss = f(x)\n"
            "grads = tape.gradient(loss, w)",
            "a tape with options, or beside other context managers, is not rewritten",
        ),
        (
            "with tf.GradientTape() as tape, other:\n    loss = f(x)\ngrads = tape.gradient(loss, w)",
            "a tape with options, or beside other context managers, is not rewritten",
        ),
        ("with tf.GradientTape():\n    loss = f(x)", "a tape without a name is not rewritten"),
        (
            "with tf.GradientTape() as tape:\n    tape.watch(x)\n    loss = f(x)\ngrads = tape.gradient(loss, [x, w])",
            "the gradient is not for the watched tensors alone",
        ),
        (
            "with tf.GradientTape() as tape:\n    tape.watch(x[0])\n    loss = f(x)\ngrads = tape.gradient(loss, x)",
            "a tape that watches an expression is not rewritten",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\noptimizer.minimize(loss, w, tape=tape)",
            "a tape with other uses than one gradient call is not rewritten",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\ngrads = tape.gradient(loss, w, output_gradients=x)",
            "a gradient with options is not rewritten",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\nif x:\n    grads = tape.gradient(loss, w)",
            "the gradient is not computed in a separate statement after the recorded ones",
        ),
        (
            "with tf.GradientTape() as tape:\n    grads = tape.gradient(loss, w)",
            "nothing is recorded before the gradient",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\n    return loss\ngrads = tape.gradient(loss, w)",
            "the body of the tape leaves the block, or deletes or declares names",
        ),
        (
            "with tf.GradientTape() as tape:\n    z = f(z)\n    loss = z\ngrads = tape.gradient(loss, w)",
            "the body of the tape reads 'z' before it sets it",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss += f(x)\ngrads = tape.gradient(loss, w)",
            "the body of the tape reads 'loss' before it sets it",
        ),
        (
            "with tf.GradientTape() as tape:\n    if x:\n        z = 1\n    loss = f(z)\n"
            "grads = tape.gradient(loss, w)",
            "the body of the tape reads 'z' before it sets it",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\n    if x:\n        extra = 1\n"
            "grads = tape.gradient(loss, w)\nprint(extra)",
            "the body of the tape does not always set 'extra', which is read later",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\nloss = loss * 2\ngrads = tape.gradient(loss, w)",
            "the loss or the variables change between the tape and its gradient",
        ),
        (
            "with tf.GradientTape() as tape:\n    loss = f(x)\n    w = [x]\ngrads = tape.gradient(loss, w)",
            "the loss or the variables change between the tape and its gradient",
        ),
    ],
)
def test_a_tape_that_is_left_as_it_is(code: str, why: str):
    assert refusal_of(code) == why


def test_a_train_step_of_a_keras_model():
    text = textwrap.dedent("""\
        import tensorflow as tf
        import keras


        class Model(keras.Model):
            def train_step(self, batch):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(None, batch, batch)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}
        """)
    outcome = ported(text)
    assert outcome.findings == ()
    assert "    @tpu.model_step\n    def train_step(self, batch):\n" in outcome.new
    assert "self.compiled_loss(batch, batch)" in outcome.new
    assert not ported(outcome.new).is_changed


def test_two_tapes_of_one_name():
    body = body_of("""
        with tf.GradientTape() as tape:
            loss = f(x, y)
        grads = tape.gradient(loss, weights)
        with tf.GradientTape() as tape:
            other = f(y, x)
        others = tape.gradient(other, weights)
        return loss, other
    """)
    assert body.count("tpu.value_and_grad(") == 2


def test_a_variable_that_the_body_changes_comes_in_as_a_default():
    assert body_of("""
        loss = 0
        with tf.GradientTape() as tape:
            for row in x:
                value = f(row, y)
                y = value
                loss += value
        grads = tape.gradient(loss, weights)
        return loss / 2
    """) == textwrap.dedent("""\
        loss = 0
        def compute_loss(loss=loss, y=y):
            for row in x:
                value = f(row, y)
                y = value
                loss += value
            return loss
        loss, grads = tpu.value_and_grad(compute_loss, weights)()
        return loss / 2""")


def test_variables_that_are_listed_between_the_tape_and_its_gradient():
    assert body_of("""
        with tf.GradientTape() as tape:
            loss = f(x)
        mean = loss / 2
        # Both models.
        variables = encoder.trainable_variables + decoder.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables))
        return mean
    """) == textwrap.dedent("""\
        def compute_loss():
            loss = f(x)
            return loss
        # Both models.
        variables = encoder.trainable_variables + decoder.trainable_variables
        loss, grads = tpu.value_and_grad(compute_loss, variables)()
        mean = loss / 2
        optimizer.apply_gradients(zip(grads, variables))
        return mean""")


def test_a_persistent_tape_that_is_deleted():
    assert body_of("""
        with tf.GradientTape(persistent=True) as tape:
            first, second = f(x), f(y)
        a = tape.gradient(first, weights)
        b = tape.gradient(second, more)
        del tape
        return a, b
    """) == textwrap.dedent("""\
        def compute_losses():
            first, second = f(x), f(y)
            return (first, second)
        (first, second), (a, b) = tpu.value_and_grad(compute_losses, [weights, more])()
        return a, b""")


def test_a_tape_that_watches_a_tensor():
    assert body_of("""
        with tf.GradientTape() as tape:
            # A mixture of both.
            mixed = mix(x, y)
            tape.watch(mixed)
            score = judge(mixed)
        grads = tape.gradient(score, [mixed])[0]
        return grads, score
    """) == textwrap.dedent("""\
        # A mixture of both.
        mixed = mix(x, y)
        def compute_loss(watched):
            [mixed] = watched
            score = judge(mixed)
            return keras.ops.sum(score), score
        (_, score), gradients = tpu.value_and_grad(compute_loss, [mixed], has_aux=True, local=True)()
        grads = gradients[0]
        return grads, score""")


def test_a_watched_tensor_and_the_variables_that_a_tape_watches_anyway():
    assert body_of("""
        with tf.GradientTape() as tape:
            tape.watch(x)
            tape.watch(model.trainable_weights)
            loss = loss_of(y, model(x))
        slope = tape.gradient(loss, x)
        return tf.sign(slope)
    """) == textwrap.dedent("""\
        def compute_loss(x):
            loss = loss_of(y, model(x))
            return keras.ops.sum(loss)
        _, slope = tpu.value_and_grad(compute_loss, x, local=True)()
        return keras.ops.sign(slope)""")


def test_a_loss_of_several_values_is_summed():
    assert body_of("""
        with tf.GradientTape() as tape:
            top = tf.reduce_max(model(picture), axis=1)
        return tape.gradient(top, picture)
    """) == textwrap.dedent("""\
        def compute_loss():
            top = keras.ops.max(model(picture), axis=1)
            return keras.ops.sum(top)
        _, gradients = tpu.value_and_grad(compute_loss, picture)()
        return gradients""")


def test_the_gradient_by_a_watched_tensor_is_the_same():
    outcome = ported(
        textwrap.dedent("""\
        import tensorflow as tf
        def slopes(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                score = tf.reduce_sum(x ** 2, axis=1)
            return tape.gradient(score, x)
    """)
    )
    names: dict = {}
    exec(outcome.new, names)
    assert names["slopes"](np.array([[1.0, 2.0], [3.0, 4.0]], "float32")).tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_comments_of_the_line_that_asks_stay():
    assert body_of("""
        with tf.GradientTape() as tape:  # a
            loss = loss_of(model(x), y)  # b
        # c
        grads = tape.gradient(loss, model.trainable_variables)  # d
        return grads
    """) == textwrap.dedent("""\
        def compute_loss():  # a
            loss = loss_of(model(x), y)  # b
            return loss
        # c
        loss, grads = tpu.value_and_grad(compute_loss, model.trainable_variables)()  # d
        return grads""")


def test_a_tape_in_a_loop_whose_name_is_bound_again_behind_it():
    outcome = ported(
        "import tensorflow as tf\ndef step(x):\n"
        "    for _ in range(3):\n        with tf.GradientTape() as tape:\n            cost = f(x)\n"
        "        slopes = tape.gradient(cost, a)\n        move(slopes)\n"
        "    with tf.GradientTape() as tape:\n        loss = g(x)\n"
        "    return tape.gradient(loss, b), cost\n"
    )
    assert outcome.by_hand == ()
    assert outcome.new == (
        "import anytpu as tpu\ndef step(x):\n"
        "    for _ in range(3):\n        def compute_loss():\n            cost = f(x)\n            return cost\n"
        "        cost, slopes = tpu.value_and_grad(compute_loss, a, local=True)()\n        move(slopes)\n"
        "    def compute_loss():\n        loss = g(x)\n        return loss\n"
        "    loss, gradients = tpu.value_and_grad(compute_loss, b)()\n"
        "    return gradients, cost\n"
    )
