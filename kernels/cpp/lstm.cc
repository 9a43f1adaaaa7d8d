// The forward and the backward pass of an LSTM over a sequence.
//
// Idea: rows of a batch are independent, so each thread runs all steps of its rows and never waits. A step is one product
// of the weights, which are packed once, and a column: the inputs, a 1 for the bias, and the hidden state. The gates are
// computed while their sums are in the cache. oneDNN's own LSTM divides each step among the threads, which wait for each
// other at each step.
//
// Sequences are `(batch, time, ...)`. The residuals of the forward pass are `(time, batch, ...)`, so that they are written
// in long pieces. Gates have Keras's order: input, forget, candidate, output.

#include "sequences.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;

struct LstmShape {
  int64_t batch, time, features, units;
  int64_t depth() const { return features + 1 + units; }
  bool is_small() const { return 8.0 * batch * time * depth() * units < kSmallFlops; }
};

// Null pointers: arrays that are absent or not requested.
struct Forward {
  const float *inputs, *hidden, *cell, *kernel, *bias, *recurrent;
  const bool* mask;
  float *every, *last_hidden, *last_cell, *rows, *gates, *cells, *tangents;
};

struct Backward {
  const float *gates, *cells, *tangents, *kernel, *recurrent;
  const bool* mask;
  const float *last_hidden, *last_cell, *every;
  float *inputs, *hidden, *cell, *slopes;
};

#define STEPS "lstm_steps.inc"
#include "machines.inc"

ffi::Error lstm_forward(Buffer inputs, Buffer hidden, Buffer cell, Mask mask, Buffer kernel, Buffer bias,
                        Buffer recurrent, Result last_hidden, Result last_cell, Result every, Result rows, Result gates,
                        Result cells, Result tangents) {
  const auto dims = inputs.dimensions();
  if (dims.size() != 3 || hidden.dimensions().size() != 2) return refuse("lstm_forward");
  const LstmShape size{dims[0], dims[1], dims[2], hidden.dimensions()[1]};
  const int64_t batch = size.batch, time = size.time, units = size.units;
  const int64_t kept = steps_of(*gates, 0, time), masked = steps_of(mask, 1, time), states = steps_of(*every, 1, time);
  const bool fits = has_shape(hidden, {batch, units}) && has_shape(cell, {batch, units}) &&
                    has_shape(mask, {batch, masked}) && has_shape(kernel, {size.features, 4 * units}) &&
                    has_shape(bias, {4 * units}) && has_shape(recurrent, {units, 4 * units}) &&
                    has_shape(*last_hidden, {batch, units}) && has_shape(*last_cell, {batch, units}) &&
                    has_shape(*every, {batch, states, units}) && has_shape(*rows, {kept, batch, size.depth()}) &&
                    has_shape(*gates, {kept, batch, 4 * units}) && has_shape(*cells, {kept, batch, units}) &&
                    has_shape(*tangents, {kept, batch, units});
  if (!fits) return refuse("lstm_forward");
  const Forward it{inputs.typed_data(),      hidden.typed_data(),    cell.typed_data(), kernel.typed_data(),
                   bias.typed_data(),        recurrent.typed_data(), or_null(mask),     or_null(*every),
                   last_hidden->typed_data(), last_cell->typed_data(), or_null(*rows),    or_null(*gates),
                   or_null(*cells),          or_null(*tangents)};
  Turn turn(size.is_small());
  ANYTPU_ON_THIS_MACHINE(forward(size, it));
  return ffi::Error::Success();
}

ffi::Error lstm_backward(Buffer last_hidden, Buffer last_cell, Buffer every, Mask mask, Buffer gates, Buffer cells,
                         Buffer tangents, Buffer kernel, Buffer recurrent, Result inputs, Result hidden, Result cell,
                         Result slopes) {
  const auto dims = inputs->dimensions();
  if (dims.size() != 3 || hidden->dimensions().size() != 2) return refuse("lstm_backward");
  const LstmShape size{dims[0], dims[1], dims[2], hidden->dimensions()[1]};
  const int64_t batch = size.batch, time = size.time, units = size.units;
  const int64_t masked = steps_of(mask, 1, time), states = steps_of(every, 1, time);
  const bool fits = has_shape(last_hidden, {batch, units}) && has_shape(last_cell, {batch, units}) &&
                    has_shape(every, {batch, states, units}) && has_shape(mask, {batch, masked}) &&
                    has_shape(gates, {time, batch, 4 * units}) && has_shape(cells, {time, batch, units}) &&
                    has_shape(tangents, {time, batch, units}) && has_shape(kernel, {size.features, 4 * units}) &&
                    has_shape(recurrent, {units, 4 * units}) && has_shape(*hidden, {batch, units}) &&
                    has_shape(*cell, {batch, units}) && has_shape(*slopes, {time, batch, 4 * units});
  if (!fits) return refuse("lstm_backward");
  const Backward it{gates.typed_data(),  cells.typed_data(),       tangents.typed_data(),  kernel.typed_data(),
                    recurrent.typed_data(), or_null(mask),         last_hidden.typed_data(), last_cell.typed_data(),
                    or_null(every),      inputs->typed_data(),     hidden->typed_data(),   cell->typed_data(),
                    slopes->typed_data()};
  Turn turn(size.is_small());
  ANYTPU_ON_THIS_MACHINE(backward(size, it));
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuLstmForward, lstm_forward,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Mask>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuLstmBackward, lstm_backward,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Mask>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<Buffer>());

}  // namespace anytpu
