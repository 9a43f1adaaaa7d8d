// A convolution, forward or either of its gradients, between arrays that lie in any order of axes.
//
// oneDNN computes with images whose features lie last and with kernels in blocks of its own; what lies otherwise is
// reordered on the way. Python (`convolution.py`) says in oneDNN's terms what is to be computed.

#include <algorithm>
#include <string>

#include "onednn.h"
#include "threads.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;
using dnnl::algorithm;
using dnnl::memory;
using Tag = memory::format_tag;

enum Role { kForward = 0, kImageGradient = 1, kKernelGradient = 2 };

// For each role: which of image, kernel and output is the left operand, the right operand and the result.
constexpr int kOrder[3][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}};

// About 10 us of one core: less is not divided.
constexpr double kSmallFlops = 1e6;

// Products that each number of a kernel's gradient sums, from which each thread makes a sum of its own.
constexpr double kManyPositions = 512;

struct Convolution {
  dnnl::primitive primitive;
  std::string implementation;
  memory::desc image, kernel, output, scratch;
};

Tag features_last(size_t rank) { return rank == 3 ? Tag::nwc : rank == 4 ? Tag::nhwc : Tag::ndhwc; }

Convolution make(int64_t role, const Sizes& image, const Sizes& kernel, const Sizes& output, const Sizes& strides,
                 const Sizes& dilation, const Sizes& before, const Sizes& after) {
  constexpr auto f32 = memory::data_type::f32;
  memory::desc src(image, f32, features_last(image.size())), dst(output, f32, features_last(output.size()));
  memory::desc weights(kernel, f32, Tag::any);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto direct = algorithm::convolution_direct;
  dnnl::convolution_forward::primitive_desc forward(engine(), dnnl::prop_kind::forward_training, direct, src, weights,
                                                    dst, strides, dilation, before, after, attributes);
  if (role == kForward)
    return {dnnl::convolution_forward(forward), forward.impl_info_str(), src, forward.weights_desc(), dst, forward.scratchpad_desc()};
  if (role == kImageGradient) {
    dnnl::convolution_backward_data::primitive_desc back(engine(), direct, src, weights, dst, strides, dilation, before,
                                                         after, forward, attributes);
    return {dnnl::convolution_backward_data(back), back.impl_info_str(), src, back.weights_desc(), dst, back.scratchpad_desc()};
  }
  dnnl::convolution_backward_weights::primitive_desc back(engine(), direct, src, weights, dst, strides, dilation,
                                                          before, after, forward, attributes);
  return {dnnl::convolution_backward_weights(back), back.impl_info_str(), src, back.diff_weights_desc(), dst, back.scratchpad_desc()};
}

// A convolution as Python describes it, but for where its arrays lie.
struct Shape {
  int64_t role;
  Sizes image, kernel, output, strides, dilation, before, after;
  int64_t parts;

  bool is_small() const {
    double flops = 2.0 * parts * output[0];
    for (int64_t size : kernel) flops *= size;
    for (size_t axis = 2; axis < output.size(); ++axis) flops *= output[axis];
    return flops < kSmallFlops;
  }

  // Whether each thread has a share of the rows, so large that adding the sums of the shares is cheap beside them.
  bool has_large_shares() const {
    double positions = output[0];
    for (size_t axis = 2; axis < output.size(); ++axis) positions *= output[axis];
    return positions >= kManyPositions && output[0] >= threads();
  }
};

// Returns what computes it, made at the first call; throws where oneDNN does not know how. It must be one's turn.
const Convolution& made(const Shape& shape) {
  static auto& all = *new std::unordered_map<Key, Convolution, Hash>;  // never destroyed: XLA's threads end later
  Key key{{shape.role, threads()}};
  for (const Sizes* sizes : {&shape.image, &shape.kernel, &shape.output, &shape.strides, &shape.dilation,
                             &shape.before, &shape.after})
    key.numbers.insert(key.numbers.end(), sizes->begin(), sizes->end());
  auto found = all.find(key);
  if (found == all.end()) {
    auto one = make(shape.role, shape.image, shape.kernel, shape.output, shape.strides, shape.dilation, shape.before,
                    shape.after);
    found = all.emplace(std::move(key), std::move(one)).first;
  }
  return found->second;
}

// One call of a primitive, with its memory. It is prepared by the caller's thread and may run on any.
class Execution {
 public:
  // image, kernel, output: where the arrays lie, as XLA has them; starts: left operand, right operand, result.
  Execution(const Shape& shape, const memory::desc lying[3], float* const starts[3], Scratch& scratch)
      : it_(made(shape)), arguments_{{DNNL_ARG_SCRATCHPAD, scratch.take(it_.scratch)}} {
    const memory::desc wanted[3] = {it_.image, it_.kernel, it_.output};
    // For each role: the names of left operand, right operand and result.
    static constexpr int names[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                        {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
                                        {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}};
    for (int i = 0; i < 3; ++i) {
      const int which = kOrder[shape.role][i];
      const bool is_alike = lie_alike(lying[which], wanted[which]);
      memory given(is_alike ? wanted[which] : lying[which], engine(), starts[i]);
      memory used = is_alike ? given : scratch.take(wanted[which]);
      if (!is_alike) (i < 2 ? before_ : after_).push_back(i < 2 ? std::pair(given, used) : std::pair(used, given));
      arguments_[names[shape.role][i]] = used;
    }
  }

  void run() {
    thread_local dnnl::stream stream(engine());
    for (auto& [from, to] : before_) dnnl::reorder(from, to).execute(stream, from, to);
    it_.primitive.execute(stream, arguments_);
    for (auto& [from, to] : after_) dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
  }

 private:
  const Convolution& it_;
  Arguments arguments_;
  std::vector<std::pair<memory, memory>> before_, after_;
};

// Whether an array has no gaps.
bool is_dense(const memory::desc& array) {
  size_t size = sizeof(float);
  for (int64_t dim : array.get_dims()) size *= dim;
  return array.get_size() == size;
}

// The gradient of a kernel, as the sum of the gradients of a share of the rows for each thread.
//
// oneDNN divides the rows too, but its threads wait for each other at barriers, by looking. On a machine with other work
// each barrier then costs a time slice. Shares need no barrier: a thread that is late has its share done by another.
void share_kernel_gradient(const Shape& shape, const memory::desc lying[3], float* const starts[3]) {
  const int64_t rows = shape.image[0], shares = threads();
  const int64_t size = static_cast<int64_t>(lying[1].get_size() / sizeof(float));
  Scratch scratch;
  std::vector<Execution> executions;
  std::vector<float*> sums;
  {
    OneThread one_thread;
    for (int64_t share = 0; share < shares; ++share) {
      const int64_t first = rows * share / shares, count = rows * (share + 1) / shares - first;
      Shape part = shape;
      part.image[0] = part.output[0] = count;
      memory::desc there[3] = {lying[0], lying[1], lying[2]};
      for (int which : {0, 2})
        there[which] = {which == 0 ? part.image : part.output, memory::data_type::f32, lying[which].get_strides()};
      float* sum = share == 0 ? starts[2] : static_cast<float*>(scratch.take(lying[1]).get_data_handle());
      float* const from[3] = {starts[0] + first * lying[0].get_strides()[0],
                              starts[1] + first * lying[2].get_strides()[0], sum};
      sums.push_back(sum);
      executions.emplace_back(part, there, from, scratch);
    }
  }
  team([&](int member, int members) {
    for (int64_t share = member; share < shares; share += members) executions[share].run();
  });
  team([&](int64_t member, int64_t members) {
    for (int64_t i = size * member / members; i < size * (member + 1) / members; ++i)
      for (int64_t share = 1; share < shares; ++share) sums[0][i] += sums[share][i];
  });
}

// Whether all numbers of `parts` arrays, `step` apart, are in a buffer of `count` numbers. No sum overflows a double.
bool is_inside(const Sizes& dims, const Sizes& strides, double parts, double step, size_t count) {
  if (dims.size() != strides.size() || dims.size() < 3 || dims.size() > 6 || parts < 1 || step < 0) return false;
  double last = (parts - 1) * step;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] < 1 || strides[axis] < 0) return false;
    last += static_cast<double>(dims[axis] - 1) * static_cast<double>(strides[axis]);
  }
  return last < static_cast<double>(count);
}

ffi::Error convolve(Buffer left, Buffer right, Result result, int64_t role, Span image, Span image_strides, Span kernel,
                    Span kernel_strides, Span output, Span output_strides, Span strides, Span dilation, Span before,
                    Span after, Span parts) {
  const Shape shape{role,           sizes(image),  sizes(kernel), sizes(output), sizes(strides),
                    sizes(dilation), sizes(before), sizes(after),  parts.size() == 4 ? parts[0] : 0};
  const Sizes places[3] = {sizes(image_strides), sizes(kernel_strides), sizes(output_strides)};
  const Sizes* const dims[3] = {&shape.image, &shape.kernel, &shape.output};
  const size_t counts[3] = {left.element_count(), right.element_count(), result->element_count()};
  bool fits = role >= kForward && role <= kKernelGradient && shape.parts > 0;
  for (int i = 0; fits && i < 3; ++i) {
    const int which = kOrder[role][i];
    fits = is_inside(*dims[which], places[which], shape.parts, parts[i + 1], counts[i]);
  }
  if (!fits || shape.image[0] != shape.output[0]) return refuse("convolution");
  Turn turn(shape.is_small());
  try {
    constexpr auto f32 = memory::data_type::f32;
    const memory::desc lying[3] = {
        {shape.image, f32, places[0]}, {shape.kernel, f32, places[1]}, {shape.output, f32, places[2]}};
    float* const starts[3] = {left.typed_data(), right.typed_data(), result->typed_data()};
    for (int64_t part = 0; part < parts[0]; ++part) {
      float* const from[3] = {starts[0] + part * parts[1], starts[1] + part * parts[2], starts[2] + part * parts[3]};
      if (role == kKernelGradient && shape.has_large_shares() && is_dense(lying[1]) && threads() > 1) {
        share_kernel_gradient(shape, lying, from);
      } else {
        Scratch scratch;
        Execution(shape, lying, from, scratch).run();
      }
    }
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("oneDNN could not compute a convolution: ") + error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuConvolution, convolve,
                              ffi::Ffi::Bind()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Attr<int64_t>("role")
                                  .Attr<Span>("image")
                                  .Attr<Span>("image_strides")
                                  .Attr<Span>("kernel")
                                  .Attr<Span>("kernel_strides")
                                  .Attr<Span>("output")
                                  .Attr<Span>("output_strides")
                                  .Attr<Span>("strides")
                                  .Attr<Span>("dilation")
                                  .Attr<Span>("before")
                                  .Attr<Span>("after")
                                  .Attr<Span>("parts"));

// Whether oneDNN has a fast kernel for a convolution: 1, or 0 where it has its plain loops only, or none.
// `numbers` are role, parts, the lengths of the seven arrays of `Shape`, and the arrays, one after the other.
extern "C" int anytpu_is_fast_convolution(const int64_t* numbers) {
  Shape shape;
  shape.role = numbers[0];
  shape.parts = numbers[1];
  const int64_t* lengths = numbers + 2;
  const int64_t* next = numbers + 9;
  for (Sizes* one : {&shape.image, &shape.kernel, &shape.output, &shape.strides, &shape.dilation, &shape.before,
                     &shape.after}) {
    one->assign(next, next + *lengths);
    next += *lengths++;
  }
  Turn turn(shape.is_small());
  try {
    return made(shape).implementation.find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return 0;
  }
}

}  // namespace anytpu
