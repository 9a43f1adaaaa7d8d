// The gradient of weights that all steps of a sequence share: the sum of the outer products of rows and slopes.

#include "sequences.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;

// rows, slopes: the first number of each that the gradient reads, of `row_floats` and `slope_floats` in a step of a
// batch's row.
struct Weights {
  int64_t replicas, time, batch, depth, gates, row_floats, slope_floats;
  const float *rows, *slopes;
  float* gradient;
  bool is_small() const { return 2.0 * time * batch * depth * gates < kSmallFlops; }
};

#define STEPS "weights_steps.inc"
#include "machines.inc"

ffi::Error sequence_weights(Buffer rows, Buffer slopes, Result gradient, int64_t first_row, int64_t first_column) {
  const auto left = rows.dimensions(), right = slopes.dimensions(), out = gradient->dimensions();
  const bool fits = left.size() == 3 && right.size() == 3 && out.size() == 3 && out[0] > 0 && left[1] % out[0] == 0 &&
                    right[0] == left[0] && right[1] == left[1] && first_row >= 0 && first_column >= 0 &&
                    first_row <= left[2] - out[1] && first_column <= right[2] - out[2];
  if (!fits) return refuse("sequence_weights");
  const Weights it{out[0], left[0], left[1], out[1], out[2], left[2], right[2],
                   rows.typed_data() + first_row, slopes.typed_data() + first_column, gradient->typed_data()};
  Turn turn(it.is_small());
  ANYTPU_ON_THIS_MACHINE(weights(it));
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuSequenceWeights, sequence_weights,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Attr<int64_t>("first_row")
                                  .Attr<int64_t>("first_column"));

}  // namespace anytpu
