// The forward and the backward pass of a GRU over a sequence, in the form that resets after the product (`reset_after`).
//
// Idea: as in the LSTM, each thread runs all steps of its rows. A step has two products, because the candidate needs those
// of the inputs and of the hidden state separately. A kept row holds the inputs, a 1 for both biases, and the hidden state;
// each product reads its part of the row.
//
// Sequences are `(batch, time, ...)`, residuals `(time, batch, ...)`. Weights have Keras's order of gates: update, reset,
// candidate. Slopes are those of the inputs' candidate, update, reset, and the hidden state's candidate: so the slopes of
// either product are contiguous.

#include "sequences.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;

struct GruShape {
  int64_t batch, time, features, units;
  int64_t depth() const { return features + 1 + units; }
  bool is_small() const { return 6.0 * batch * time * depth() * units < kSmallFlops; }
};

// Null pointers: arrays that are absent or not requested. gates: update, reset, candidate, and the hidden state's product
// for the candidate.
struct Forward {
  const float *inputs, *hidden, *kernel, *bias, *recurrent;
  const bool* mask;
  float *last_hidden, *every, *rows, *gates;
};

struct Backward {
  const float *last_hidden, *every, *rows, *gates, *kernel, *recurrent;
  const bool* mask;
  float *inputs, *hidden, *slopes;
};

#define STEPS "gru_steps.inc"
#include "machines.inc"

ffi::Error gru_forward(Buffer inputs, Buffer hidden, Mask mask, Buffer kernel, Buffer bias, Buffer recurrent,
                       Result last_hidden, Result every, Result rows, Result gates) {
  const auto dims = inputs.dimensions();
  if (dims.size() != 3 || hidden.dimensions().size() != 2) return refuse("gru_forward");
  const GruShape size{dims[0], dims[1], dims[2], hidden.dimensions()[1]};
  const int64_t batch = size.batch, time = size.time, units = size.units;
  const int64_t kept = steps_of(*gates, 0, time), masked = steps_of(mask, 1, time), states = steps_of(*every, 1, time);
  const bool fits = has_shape(hidden, {batch, units}) && has_shape(mask, {batch, masked}) &&
                    has_shape(kernel, {size.features, 3 * units}) && has_shape(bias, {2, 3 * units}) &&
                    has_shape(recurrent, {units, 3 * units}) && has_shape(*last_hidden, {batch, units}) &&
                    has_shape(*every, {batch, states, units}) && has_shape(*rows, {kept, batch, size.depth()}) &&
                    has_shape(*gates, {kept, batch, 4 * units});
  if (!fits) return refuse("gru_forward");
  const Forward it{inputs.typed_data(), hidden.typed_data(),       kernel.typed_data(), bias.typed_data(),
                   recurrent.typed_data(), or_null(mask),          last_hidden->typed_data(), or_null(*every),
                   or_null(*rows),      or_null(*gates)};
  Turn turn(size.is_small());
  ANYTPU_ON_THIS_MACHINE(forward(size, it));
  return ffi::Error::Success();
}

ffi::Error gru_backward(Buffer last_hidden, Buffer every, Mask mask, Buffer rows, Buffer gates, Buffer kernel,
                        Buffer recurrent, Result inputs, Result hidden, Result slopes) {
  const auto dims = inputs->dimensions();
  if (dims.size() != 3 || hidden->dimensions().size() != 2) return refuse("gru_backward");
  const GruShape size{dims[0], dims[1], dims[2], hidden->dimensions()[1]};
  const int64_t batch = size.batch, time = size.time, units = size.units;
  const int64_t masked = steps_of(mask, 1, time), states = steps_of(every, 1, time);
  const bool fits = has_shape(last_hidden, {batch, units}) && has_shape(every, {batch, states, units}) &&
                    has_shape(mask, {batch, masked}) && has_shape(rows, {time, batch, size.depth()}) &&
                    has_shape(gates, {time, batch, 4 * units}) && has_shape(kernel, {size.features, 3 * units}) &&
                    has_shape(recurrent, {units, 3 * units}) && has_shape(*hidden, {batch, units}) &&
                    has_shape(*slopes, {time, batch, 4 * units});
  if (!fits) return refuse("gru_backward");
  const Backward it{last_hidden.typed_data(), or_null(every),         rows.typed_data(), gates.typed_data(),
                    kernel.typed_data(),      recurrent.typed_data(), or_null(mask),     inputs->typed_data(),
                    hidden->typed_data(),     slopes->typed_data()};
  Turn turn(size.is_small());
  ANYTPU_ON_THIS_MACHINE(backward(size, it));
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuGruForward, gru_forward,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Mask>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuGruBackward, gru_backward,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Mask>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>());

}  // namespace anytpu
