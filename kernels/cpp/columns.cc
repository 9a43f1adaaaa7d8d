// Sums over the rows of a matrix, for each of its columns: the moments of batch normalization, and its gradient's sums.
//
// Idea: each operand is read from memory once. A block of rows stays in the cache while its mean is computed, and then its
// sums around that mean. Blocks are merged in double precision, so the results are as exact as those of two passes.
// Several short rows are read as one long row, so the inner loops are long for few columns too.
//
// Each thread has its own share of the blocks. Shares are merged in their order, so results do not vary between calls.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "onednn.h"
#include "threads.h"

namespace anytpu {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kMinWidth = 64;           // columns of the long rows, if there are so many numbers
constexpr int64_t kBlockNumbers = 8192;     // 32 KB: a block stays in the cache
constexpr int64_t kMinBlockRows = 32;       // merging costs as much as some rows
constexpr int64_t kSmallNumbers = 1 << 15;  // below it, about 10 us of one core, one thread computes

#if defined(__x86_64__)
#define FOR_EACH_MACHINE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_MACHINE
#endif

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

FOR_EACH_MACHINE void add_rows(const float* __restrict x, int64_t rows, int64_t width, float* __restrict sums) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, x += 4 * width)
    for (int64_t j = 0; j < width; ++j)
      sums[j] += (x[j] + x[j + width]) + (x[j + 2 * width] + x[j + 3 * width]);
  for (; row < rows; ++row, x += width)
    for (int64_t j = 0; j < width; ++j) sums[j] += x[j];
}

FOR_EACH_MACHINE void add_centered(const float* __restrict x, int64_t rows, int64_t width, const float* __restrict center,
                                   float* __restrict sums, float* __restrict squares) {
  int64_t row = 0;
  for (; row + 2 <= rows; row += 2, x += 2 * width)
    for (int64_t j = 0; j < width; ++j) {
      const float a = x[j] - center[j], b = x[j + width] - center[j];
      sums[j] += a + b;
      squares[j] += a * a + b * b;
    }
  for (; row < rows; ++row, x += width)
    for (int64_t j = 0; j < width; ++j) {
      const float a = x[j] - center[j];
      sums[j] += a;
      squares[j] += a * a;
    }
}

FOR_EACH_MACHINE void add_products(const float* __restrict g, const float* __restrict x, int64_t rows, int64_t width,
                                   const float* __restrict center, float* __restrict sums, float* __restrict products) {
  int64_t row = 0;
  for (; row + 2 <= rows; row += 2, x += 2 * width, g += 2 * width)
    for (int64_t j = 0; j < width; ++j) {
      sums[j] += g[j] + g[j + width];
      products[j] += g[j] * (x[j] - center[j]) + g[j + width] * (x[j + width] - center[j]);
    }
  for (; row < rows; ++row, x += width, g += width)
    for (int64_t j = 0; j < width; ++j) {
      sums[j] += g[j];
      products[j] += g[j] * (x[j] - center[j]);
    }
}

struct Matrix {
  int64_t rows, columns;
  int64_t repeats() const { return std::max<int64_t>(1, kMinWidth / columns); }
  bool is_small() const { return rows * columns < kSmallNumbers; }
};

// Calls `work(share, first, count, repeats)` for each block of `count` long rows, which begins at row `first`; a long row
// is `repeats` rows. The last call of the last share has the rows that do not fill a long row.
void for_blocks(const Matrix& it, int64_t shares, const std::function<void(int64_t, int64_t, int64_t, int64_t)>& work) {
  const int64_t repeats = it.repeats(), width = repeats * it.columns, rows = it.rows / repeats;
  const int64_t each = std::max(kMinBlockRows, kBlockNumbers / width), blocks = (rows + each - 1) / each;
  team([&](int member, int members) {
    for (int64_t share = member; share < shares; share += members) {
      for (int64_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block)
        work(share, block * each * repeats, std::min(each, rows - block * each), repeats);
      if (share == shares - 1 && rows * repeats < it.rows) work(share, rows * repeats, it.rows - rows * repeats, 1);
    }
  });
}

// Number of rows, and for each column the mean and the sum of squares around it.
struct Moments {
  double rows = 0;
  Doubles mean, squares;

  explicit Moments(int64_t columns) : mean(columns), squares(columns) {}

  // Merges the moments of other rows (Chan, Golub and LeVeque, 1979).
  template <typename Mean, typename Squares>
  void merge(double other_rows, Mean other_mean, Squares other_squares) {
    if (other_rows == 0) return;
    const double share = other_rows / (rows + other_rows), weight = rows * share;
    for (size_t j = 0; j < mean.size(); ++j) {
      const double difference = other_mean(j) - mean[j];
      mean[j] += difference * share;
      squares[j] += other_squares(j) + difference * difference * weight;
    }
    rows += other_rows;
  }
};

void compute_moments(const Matrix& it, const float* x, float* mean, float* variance) {
  const int64_t shares = threads(), columns = it.columns;
  std::vector<Moments> moments(shares, Moments(columns));
  for_blocks(it, shares, [&](int64_t share, int64_t first, int64_t count, int64_t repeats) {
    const int64_t width = repeats * columns;
    thread_local Floats center, sums, squares;
    for (Floats* floats : {&center, &sums, &squares}) floats->assign(width, 0);
    add_rows(x + first * columns, count, width, center.data());
    for (float& sum : center) sum /= static_cast<float>(count);
    add_centered(x + first * columns, count, width, center.data(), sums.data(), squares.data());
    const double rows = static_cast<double>(count);
    for (int64_t i = 0; i < width; i += columns)
      moments[share].merge(
          rows, [&](size_t j) { return center[i + j] + sums[i + j] / rows; },
          [&](size_t j) { return squares[i + j] - sums[i + j] * (sums[i + j] / rows); });
  });
  Moments& total = moments[0];
  for (int64_t share = 1; share < shares; ++share)
    total.merge(
        moments[share].rows, [&](size_t j) { return moments[share].mean[j]; },
        [&](size_t j) { return moments[share].squares[j]; });
  for (int64_t j = 0; j < columns; ++j) {
    mean[j] = static_cast<float>(total.mean[j]);
    const double square = total.squares[j] / total.rows;
    variance[j] = static_cast<float>(square < 0 ? 0 : square);  // std::max would hide a NaN.
  }
}

void compute_products(const Matrix& it, const float* g, const float* x, const float* center, float* sums,
                      float* products) {
  const int64_t shares = threads(), columns = it.columns;
  std::vector<Doubles> totals(shares, Doubles(2 * columns));
  Floats centers(it.repeats() * columns);
  for (size_t j = 0; j < centers.size(); ++j) centers[j] = center[j % columns];
  for_blocks(it, shares, [&](int64_t share, int64_t first, int64_t count, int64_t repeats) {
    const int64_t width = repeats * columns;
    thread_local Floats block;
    block.assign(2 * width, 0);
    add_products(g + first * columns, x + first * columns, count, width, centers.data(), block.data(),
                 block.data() + width);
    for (int64_t i = 0; i < width; i += columns)
      for (int64_t j = 0; j < columns; ++j) {
        totals[share][j] += block[i + j];
        totals[share][columns + j] += block[width + i + j];
      }
  });
  for (int64_t j = 0; j < columns; ++j) {
    double sum = 0, product = 0;
    for (const Doubles& share : totals) sum += share[j], product += share[columns + j];
    sums[j] = static_cast<float>(sum);
    products[j] = static_cast<float>(product);
  }
}

struct Matrices {
  int64_t count = 1;
  Matrix each;

  explicit Matrices(const Buffer& buffer) {
    const auto dims = buffer.dimensions();
    for (size_t axis = 0; axis + 2 < dims.size(); ++axis) count *= dims[axis];
    each = {dims[dims.size() - 2], dims[dims.size() - 1]};
  }
};

bool is_vector(const Matrices& they, int64_t numbers) { return numbers == they.count * they.each.columns; }

ffi::Error column_moments(Buffer x, Result mean, Result variance) {
  if (x.dimensions().size() < 2 || x.element_count() == 0) return refuse("column_moments");
  const Matrices they(x);
  if (!is_vector(they, mean->element_count()) || !is_vector(they, variance->element_count()))
    return refuse("column_moments");
  const int64_t columns = they.each.columns, size = they.each.rows * columns;
  Turn turn(they.each.is_small());
  for (int64_t i = 0; i < they.count; ++i)
    compute_moments(they.each, x.typed_data() + i * size, mean->typed_data() + i * columns,
                    variance->typed_data() + i * columns);
  return ffi::Error::Success();
}

ffi::Error column_products(Buffer g, Buffer x, Buffer center, Result sums, Result products) {
  if (x.dimensions().size() < 2 || x.element_count() == 0 || g.element_count() != x.element_count())
    return refuse("column_products");
  const Matrices they(x);
  if (!is_vector(they, center.element_count()) || !is_vector(they, sums->element_count()) ||
      !is_vector(they, products->element_count()))
    return refuse("column_products");
  const int64_t columns = they.each.columns, size = they.each.rows * columns;
  Turn turn(they.each.is_small());
  for (int64_t i = 0; i < they.count; ++i)
    compute_products(they.each, g.typed_data() + i * size, x.typed_data() + i * size, center.typed_data() + i * columns,
                     sums->typed_data() + i * columns, products->typed_data() + i * columns);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuColumnMoments, column_moments,
                              ffi::Ffi::Bind().Arg<Buffer>().Ret<Buffer>().Ret<Buffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(AnytpuColumnProducts, column_products,
                              ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Ret<Buffer>());

}  // namespace anytpu
