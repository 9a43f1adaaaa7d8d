#include "onednn.h"

#include <cstdlib>

namespace anytpu {

dnnl::engine& engine() {
  static auto& one = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return one;
}

dnnl::memory Scratch::take(const dnnl::memory::desc& what) {
  // Blocks are kept: a block that is too small for what is asked is passed over.
  struct Block {
    void* memory;
    size_t size;
  };
  static auto& blocks = *new std::vector<Block>;
  constexpr size_t kPage = 4096;
  size_t size = (what.get_size() + kPage - 1) / kPage * kPage;
  if (taken_ == blocks.size()) blocks.push_back({nullptr, 0});
  Block& block = blocks[taken_++];
  if (block.size < size) {
    std::free(block.memory);
    block = {std::aligned_alloc(kPage, size), size};
  }
  return dnnl::memory(what, engine(), block.memory);
}

bool lie_alike(const dnnl::memory::desc& one, const dnnl::memory::desc& other) {
  if (one == other) return true;
  if (one.get_format_kind() != dnnl::memory::format_kind::blocked || one.get_inner_nblks() != 0) return false;
  if (other.get_format_kind() != dnnl::memory::format_kind::blocked || other.get_inner_nblks() != 0) return false;
  Sizes dims = one.get_dims(), mine = one.get_strides(), theirs = other.get_strides();
  if (dims != other.get_dims()) return false;
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] > 1 && mine[i] != theirs[i]) return false;
  return true;
}

}  // namespace anytpu
