// Sums of the rows of an embedding table, and the update of the rows that a batch uses.
//
// Idea: a table is much larger than the caches, so both kernels wait for memory. They request rows from memory before they
// use them. The update sorts the batch's ids first. So a row is read and written once, whatever the number of its ids, and
// the table is passed through in one direction. An optimizer's formula is applied while the row is in the cache.
//
// Rule: the gradients of an id are added in the order of the batch, by one thread. So results do not vary between calls,
// nor with the number of threads. An id outside of the table stands for no row; so does an id with a weight of 0 in an
// update.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "onednn.h"
#include "threads.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;

using Ids = ffi::Buffer<ffi::S32>;
using Numbers = ffi::Span<const float>;

constexpr int64_t kSmallNumbers = 1 << 15;  // below it, about 10 us of one core, one thread computes
constexpr int64_t kLineFloats = 16;         // a cache line
constexpr int64_t kMaxLines = 16;           // the processor requests the rest of a long row by itself
constexpr int64_t kSumsAhead = 12;          // rows requested before their use
constexpr int64_t kUpdatesAhead = 4;        // as above; each is a row of the table and of every slot
constexpr int kDigitBits = 11;
constexpr int64_t kMaxSlots = 2;

#if defined(__x86_64__)
#define FOR_EACH_MACHINE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_MACHINE
#endif

template <int kWrites>
void request(const float* row, int64_t width) {
  const int64_t end = std::min(width, kMaxLines * kLineFloats);
  for (int64_t j = 0; j < end; j += kLineFloats) __builtin_prefetch(row + j, kWrites);
}

FOR_EACH_MACHINE void add_scaled(const float* __restrict x, float scale, int64_t width, float* __restrict sum) {
  for (int64_t j = 0; j < width; ++j) sum[j] += x[j] * scale;
}

FOR_EACH_MACHINE void clip(float limit, int64_t width, float* __restrict x) {
  for (int64_t j = 0; j < width; ++j) {
    const float low = x[j] < -limit ? -limit : x[j];  // A NaN stays one.
    x[j] = low > limit ? limit : low;
  }
}

// The formulas. `g` is the sum of a row's gradients, `rate` the learning rate; Adam's is corrected for its bias.

FOR_EACH_MACHINE void sgd(int64_t width, float rate, const float* __restrict g, float* __restrict row) {
  for (int64_t j = 0; j < width; ++j) row[j] -= g[j] * rate;
}

FOR_EACH_MACHINE void momentum(int64_t width, float rate, float decay, bool is_nesterov, const float* __restrict g,
                               float* __restrict row, float* __restrict velocity) {
  for (int64_t j = 0; j < width; ++j) {
    const float step = g[j] * rate, moved = velocity[j] * decay - step;
    velocity[j] = moved;
    row[j] += is_nesterov ? moved * decay - step : moved;
  }
}

FOR_EACH_MACHINE void adagrad(int64_t width, float rate, float epsilon, const float* __restrict g, float* __restrict row,
                              float* __restrict total) {
  for (int64_t j = 0; j < width; ++j) {
    total[j] += g[j] * g[j];
    row[j] -= rate * g[j] / std::sqrt(total[j] + epsilon);
  }
}

FOR_EACH_MACHINE void adam(int64_t width, float rate, float mean_share, float square_share, float epsilon,
                           const float* __restrict g, float* __restrict row, float* __restrict mean,
                           float* __restrict square) {
  for (int64_t j = 0; j < width; ++j) {
    const float m = mean[j] + (g[j] - mean[j]) * mean_share;
    const float s = square[j] + (g[j] * g[j] - square[j]) * square_share;
    mean[j] = m;
    square[j] = s;
    row[j] -= m * rate / (std::sqrt(s) + epsilon);
  }
}

struct Ftrl {
  float power, l1, l2, shrinkage;
};

template <typename Power>
inline __attribute__((always_inline)) void ftrl_with(Power power, int64_t width, float rate, const Ftrl& it,
                                                     const float* __restrict g, float* __restrict row,
                                                     float* __restrict total, float* __restrict linear) {
  for (int64_t j = 0; j < width; ++j) {
    const float grown = total[j] + g[j] * g[j], scale = power(grown);
    const float sum = linear[j] + (g[j] + 2 * it.shrinkage * row[j]) - (scale - power(total[j])) / rate * row[j];
    const float low = sum < -it.l1 ? -it.l1 : sum, clipped = low > it.l1 ? it.l1 : low;
    total[j] = grown;
    linear[j] = sum;
    row[j] = (clipped - sum) / (scale / rate + 2 * it.l2);
  }
}

FOR_EACH_MACHINE void ftrl_of_root(int64_t width, float rate, const Ftrl& it, const float* __restrict g,
                                   float* __restrict row, float* __restrict total, float* __restrict linear) {
  ftrl_with([](float x) { return std::sqrt(x); }, width, rate, it, g, row, total, linear);
}

void ftrl(int64_t width, float rate, const Ftrl& it, const float* g, float* row, float* total, float* linear) {
  if (it.power == 0.5f) return ftrl_of_root(width, rate, it, g, row, total, linear);
  ftrl_with([&](float x) { return std::pow(x, it.power); }, width, rate, it, g, row, total, linear);
}

enum Rule : int64_t { kSgd, kMomentum, kAdagrad, kAdam, kFtrl, kRules };

constexpr int64_t kSlots[kRules] = {0, 1, 1, 2, 2};
constexpr size_t kNumbers[kRules] = {1, 3, 2, 4, 6};

// The arrays of a table, and the rule of its update. `numbers` begin with the limit of each gradient.
struct Table {
  int64_t size, width;
  float* rows;
  float* slots[kMaxSlots];
  int64_t rule;
  float rate;
  Numbers numbers;

  void request_row(int64_t id) const {
    request<1>(rows + id * width, width);
    for (int64_t slot = 0; slot < kSlots[rule]; ++slot) request<1>(slots[slot] + id * width, width);
  }

  void update(int64_t id, float* g) const {
    const int64_t first = id * width;
    float* const row = rows + first;
    float* const one = kSlots[rule] > 0 ? slots[0] + first : nullptr;
    float* const two = kSlots[rule] > 1 ? slots[1] + first : nullptr;
    if (std::isfinite(numbers[0])) clip(numbers[0], width, g);
    switch (rule) {
      case kSgd: return sgd(width, rate, g, row);
      case kMomentum: return momentum(width, rate, numbers[1], numbers[2] != 0, g, row, one);
      case kAdagrad: return adagrad(width, rate, numbers[1], g, row, one);
      case kAdam: return adam(width, rate, numbers[1], numbers[2], numbers[3], g, row, one, two);
      default: {
        const float l2 = numbers[3] + numbers[5] / (2 * rate);
        return ftrl(width, rate, {numbers[1], numbers[2], l2, numbers[4]}, g, row, one, two);
      }
    }
  }
};

// A row of the table, and the index of one of its ids in the batch.
struct Use {
  uint32_t row, index;
};

// The batch's ids, with the gradient and the weight of each. Memory is kept for the next call.
struct Batch {
  std::vector<Use> uses, spare;
  std::vector<const float*> gradients;
  std::vector<float> weights;

  void clear() {
    uses.clear();
    gradients.clear();
    weights.clear();
  }

  void add(const Ids& ids, const Buffer& weight, const Buffer& gradient, int64_t table_size) {
    const int64_t bags = ids.dimensions()[0], size = ids.dimensions()[1], width = gradient.dimensions()[1];
    const int32_t* id = ids.typed_data();
    const float *scale = weight.typed_data(), *row = gradient.typed_data();
    for (int64_t bag = 0; bag < bags; ++bag, row += width)
      for (int64_t i = 0; i < size; ++i, ++id, ++scale) {
        if (*id < 0 || *id >= table_size || *scale == 0) continue;
        uses.push_back({static_cast<uint32_t>(*id), static_cast<uint32_t>(weights.size())});
        gradients.push_back(row);
        weights.push_back(*scale);
      }
  }

  // Sorts by row, digit by digit. The order of the batch is kept within a row.
  void sort(int64_t table_size) {
    spare.resize(uses.size());
    const int bits = std::bit_width(static_cast<uint64_t>(table_size - 1));
    for (int shift = 0; shift < bits; shift += kDigitBits) {
      const auto digit = [&](const Use& use) { return use.row >> shift & ((1u << kDigitBits) - 1); };
      size_t starts[1 << kDigitBits] = {};
      for (const Use& use : uses) ++starts[digit(use)];
      size_t next = 0;
      for (size_t& start : starts) start = std::exchange(next, next + start);
      for (const Use& use : uses) spare[starts[digit(use)]++] = use;
      std::swap(uses, spare);
    }
  }

  // The first use of a member's share that begins a row.
  int64_t first_of(int64_t member, int64_t members) const {
    const int64_t count = static_cast<int64_t>(uses.size());
    int64_t first = count * member / members;
    while (first > 0 && first < count && uses[first].row == uses[first - 1].row) ++first;
    return first;
  }
};

void update_rows(const Table& table, const Batch& batch) {
  team([&](int member, int members) {
    thread_local std::vector<float> sum;
    const int64_t end = batch.first_of(member + 1, members), count = static_cast<int64_t>(batch.uses.size());
    for (int64_t i = batch.first_of(member, members); i < end;) {
      const uint32_t row = batch.uses[i].row;
      sum.assign(table.width, 0);
      for (; i < count && batch.uses[i].row == row; ++i) {
        if (i + kUpdatesAhead < end) table.request_row(batch.uses[i + kUpdatesAhead].row);
        const uint32_t index = batch.uses[i].index;
        add_scaled(batch.gradients[index], batch.weights[index], table.width, sum.data());
      }
      table.update(row, sum.data());
    }
  });
}

ffi::Error row_sums(Buffer rows, Ids ids, Buffer weights, Result sums) {
  if (rows.dimensions().size() != 2 || ids.dimensions().size() != 2) return refuse("row_sums");
  const int64_t table_size = rows.dimensions()[0], width = rows.dimensions()[1];
  const int64_t bags = ids.dimensions()[0], size = ids.dimensions()[1];
  if (!has_shape(weights, {bags, size}) || !has_shape(*sums, {bags, width})) return refuse("row_sums");
  const float *row = rows.typed_data(), *weight = weights.typed_data();
  const int32_t* id = ids.typed_data();
  float* const result = sums->typed_data();
  const auto is_row = [&](int64_t i) { return id[i] >= 0 && id[i] < table_size; };
  Turn turn(bags * size * width < kSmallNumbers);
  team([&](int member, int members) {
    const int64_t last = bags * (member + 1) / members, end = last * size;
    for (int64_t bag = bags * member / members; bag < last; ++bag) {
      float* const sum = result + bag * width;
      std::fill_n(sum, width, 0.0f);
      for (int64_t i = bag * size; i < (bag + 1) * size; ++i) {
        if (i + kSumsAhead < end && is_row(i + kSumsAhead)) request<0>(row + id[i + kSumsAhead] * width, width);
        if (is_row(i)) add_scaled(row + id[i] * width, weight[i], width, sum);
      }
    }
  });
  return ffi::Error::Success();
}

// Returns whether results are of the table's shape, and makes them the arrays to update: where XLA has not given an
// operand and its result the same memory, the operand is copied first.
bool take_results(ffi::RemainingArgs arguments, ffi::RemainingRets results, Table& table) {
  for (int64_t i = 0; i <= kSlots[table.rule]; ++i) {
    const auto before = arguments.get<Buffer>(i);
    auto after = results.get<Buffer>(i);
    if (!before || !after || !has_shape(*before, {table.size, table.width})) return false;
    if (!has_shape(**after, {table.size, table.width})) return false;
    float* const memory = (*after)->typed_data();
    if (memory != before->typed_data()) std::memcpy(memory, before->typed_data(), before->size_bytes());
    (i == 0 ? table.rows : table.slots[i - 1]) = memory;
  }
  return true;
}

// The operands are the table, its slots, the learning rate, and for each feature ids, weights and gradients of its bags.
ffi::Error row_update(ffi::RemainingArgs arguments, ffi::RemainingRets results, int64_t rule, Numbers numbers) {
  if (rule < 0 || rule >= kRules || numbers.size() != kNumbers[rule]) return refuse("row_update");
  const size_t arrays = 1 + kSlots[rule];
  if (arguments.size() < arrays + 1 || (arguments.size() - arrays - 1) % 3 != 0 || results.size() != arrays)
    return refuse("row_update");
  const auto rows = arguments.get<Buffer>(0), rate = arguments.get<Buffer>(arrays);
  if (!rows || rows->dimensions().size() != 2 || !rate || !has_shape(*rate, {})) return refuse("row_update");
  Table table{rows->dimensions()[0], rows->dimensions()[1], nullptr, {}, rule, *rate->typed_data(), numbers};

  Turn turn(false);
  static auto& batch = *new Batch;
  batch.clear();
  for (size_t i = arrays + 1; i < arguments.size(); i += 3) {
    const auto ids = arguments.get<Ids>(i);
    const auto weights = arguments.get<Buffer>(i + 1), gradient = arguments.get<Buffer>(i + 2);
    if (!ids || !weights || !gradient || ids->dimensions().size() != 2) return refuse("row_update");
    const int64_t bags = ids->dimensions()[0], size = ids->dimensions()[1];
    if (!has_shape(*weights, {bags, size}) || !has_shape(*gradient, {bags, table.width})) return refuse("row_update");
    if (batch.weights.size() + ids->element_count() > UINT32_MAX) return refuse("row_update");
    batch.add(*ids, *weights, *gradient, table.size);
  }
  if (!take_results(arguments, results, table)) return refuse("row_update");
  if (batch.uses.empty() || table.width == 0) return ffi::Error::Success();
  batch.sort(table.size);
  if (static_cast<int64_t>(batch.uses.size()) * table.width < kSmallNumbers) {
    OneThread one;
    update_rows(table, batch);
  } else {
    update_rows(table, batch);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuRowSums, row_sums,
                              ffi::Ffi::Bind().Arg<Buffer>().Arg<Ids>().Arg<Buffer>().Ret<Buffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuRowUpdate, row_update,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("rule")
                                  .Attr<ffi::Span<const float>>("numbers"));

}  // namespace anytpu
