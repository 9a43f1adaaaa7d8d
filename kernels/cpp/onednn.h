// What the kernels share: the engine, memory that lies in XLA's buffers, scratch memory, reorders.
#pragma once

#include <cstdint>
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
