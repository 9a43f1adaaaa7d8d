// What the kernels share: the engine, memory that lies in XLA's buffers, scratch memory, reorders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace anytpu {

using Sizes = std::vector<int64_t>;
using Span = xla::ffi::Span<const int64_t>;
using Buffer = xla::ffi::Buffer<xla::ffi::F32>;
using Result = xla::ffi::ResultBuffer<xla::ffi::F32>;
using Arguments = std::unordered_map<int, dnnl::memory>;

dnnl::engine& engine();

inline Sizes sizes(Span span) { return Sizes(span.begin(), span.end()); }

// A call in a program from elsewhere may have operands of any shape. A kernel refuses those that it would read or write
// beyond their ends.
inline xla::ffi::Error refuse(const char* kernel) {
  return {xla::ffi::ErrorCode::kInvalidArgument, std::string(kernel) + ": the shapes of its arrays do not fit together"};
}

template <typename Array>
bool has_shape(const Array& array, std::initializer_list<int64_t> shape) {
  const auto dims = array.dimensions();
  return dims.size() == shape.size() && std::equal(shape.begin(), shape.end(), dims.begin());
}

// Hands out pieces of memory that lives until the process ends and is used by one call after the other.
class Scratch {
 public:
  Scratch() = default;
  dnnl::memory take(const dnnl::memory::desc& what);

 private:
  size_t taken_ = 0;
};

// Whether two descriptions of the same sizes put each number at the same place.
bool lie_alike(const dnnl::memory::desc& one, const dnnl::memory::desc& other);

// The key of a cache of primitives.
struct Key {
  Sizes numbers;
  bool operator==(const Key& other) const { return numbers == other.numbers; }
};
struct Hash {
  size_t operator()(const Key& key) const {
    size_t hash = key.numbers.size();
    for (int64_t number : key.numbers) hash = hash * 1099511628211u ^ static_cast<size_t>(number);
    return hash;
  }
};

}  // namespace anytpu
