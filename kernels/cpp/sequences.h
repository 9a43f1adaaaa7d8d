// What the LSTM and the GRU share: operands, shares of rows, and the choice of an instruction set.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "onednn.h"
#include "threads.h"

namespace anytpu {

using Mask = xla::ffi::Buffer<xla::ffi::PRED>;

constexpr double kSmallFlops = 1e6;  // below it, about 10 us of one core, one thread computes

// Calls `work(first, count)` for blocks of rows, on all threads. The sums of a block stay in the cache.
inline void share_rows(int64_t batch, const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kMaxRows = 32;
  const int count = threads();
  const int64_t each = std::max<int64_t>(1, (batch + count * kMaxRows - 1) / (count * kMaxRows)) * count;
  const int64_t blocks = std::min(batch, each);
  team([&](int member, int members) {
    for (int64_t block = member; block < blocks; block += members) {
      const int64_t first = batch * block / blocks;
      work(first, batch * (block + 1) / blocks - first);
    }
  });
}

enum class Machine { kAny, kAvx2, kAvx512 };

inline Machine machine() {
  static const Machine found = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
      return Machine::kAvx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Machine::kAvx2 : Machine::kAny;
  }();
  return found;
}

// Calls a function of the namespace for this machine's instruction set (`machines.inc`).
#define ANYTPU_ON_THIS_MACHINE(call)                       \
  do {                                                     \
    if (machine() == Machine::kAvx512) avx512::call;       \
    else if (machine() == Machine::kAvx2) avx2::call;      \
    else any::call;                                        \
  } while (false)

// Null for an array that is absent or not requested.
template <typename Array>
auto* or_null(Array& array) {
  return array.element_count() ? array.typed_data() : nullptr;
}

// Number of steps that an array must have: all, or none if its axis of time has length 0.
template <typename Array>
int64_t steps_of(const Array& array, size_t axis, int64_t time) {
  const auto dims = array.dimensions();
  return axis < dims.size() && dims[axis] == 0 ? 0 : time;
}

}  // namespace anytpu
