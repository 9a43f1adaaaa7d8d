"""`how_to_rematerialise`: the code with which a user's own step computes parts of its forward pass again."""

from __future__ import annotations

from anytpu.program.rematerialising import Remat

_POLICY = "policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable"


def how_to_rematerialise(remat: Remat, blocks: int, is_model: bool) -> str:
    """Return the change to a user's code, one sentence.

    Args:
        remat: the part that is computed again.
        blocks: number of blocks for which this keeps the fewest bytes.
        is_model: whether the code is a Keras model.

    Example:
        >>> how_to_rematerialise("by block", 4, is_model=False)
        'Rematerialise by block: jax.checkpoint(block)(x, weights) around each of about 4 blocks.'
    """
    around = f"around each of about {blocks} blocks"
    if remat == "products kept":
        function = "lambda x: block(x)" if is_model else "block"
        call = f"jax.checkpoint({function}, {_POLICY})({'x' if is_model else 'x, weights'})"
        title = "Rematerialise all but the products"
    else:
        call = "keras.remat(lambda x: block(x))(x)" if is_model else "jax.checkpoint(block)(x, weights)"
        title = "Rematerialise by block"
    place = ", in the call of a layer," if is_model else ""
    return f"{title}: {call}{place} {around}{' of layers' if is_model else ''}."
