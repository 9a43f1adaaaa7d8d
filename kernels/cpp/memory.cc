// Huge pages for XLA's large buffers, and their reuse.
//
// XLA allocates the temporary memory of each call anew. glibc maps blocks of 32 MB and more from the kernel and returns
// them at once, so each call has a page fault for every 4 KB that it touches, and the kernel clears every page. With huge
// pages there is a fault for every 2 MB. Linux provides them on request (`madvise`, its default), and XLA does not request
// them. A freed block is kept for the next call, which then has neither faults nor pages to clear.
//
// Idea: jaxlib calls `posix_memalign` and `free` through its import table. Both entries are replaced. Every block is
// glibc's, so all sizes are unchanged, and any other `free` of a block is right too. At most one block is kept. Linux may
// take its pages back when memory is short (MADV_FREE). It is not kept while a block of the same size is in use: two
// blocks would raise the peak. The next call often allocates a few milliseconds before the last call frees, so it waits
// for that block, at most as long as Linux takes to clear a new block.

#include <elf.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

// Minimum size for which glibc maps a block of its own (DEFAULT_MMAP_THRESHOLD_MAX).
constexpr size_t kMappedBytes = size_t{32} << 20;

// A kept block serves a request that leaves at most an eighth of it unused.
constexpr size_t kUnusedShare = 8;

// Time in which Linux clears a byte of huge pages: 26 ms for 288 MB.
constexpr double kClearNanoseconds = 0.09;

constexpr int kMaxHalvings = 20;
constexpr auto kLookPause = std::chrono::microseconds(50);

constexpr char kFolder[] = "/jaxlib/";

std::atomic<void*> kept{nullptr};

// The sizes of large blocks in use; 0 for a free entry. Blocks beyond these are not counted.
std::atomic<size_t> used[64];

bool exchange_used(size_t from, size_t to) {
  for (auto& entry : used) {
    size_t expected = from;
    if (entry.compare_exchange_strong(expected, to)) return true;
  }
  return false;
}

int count_used(size_t size) {
  return static_cast<int>(std::count(std::begin(used), std::end(used), size));
}

// Whether a block of this size serves a request.
bool fits(size_t size, size_t bytes) { return size >= bytes && size - bytes <= size / kUnusedShare; }

// Advises Linux about the whole pages of a block. Advice may fail, which changes nothing.
void advise(void* block, size_t bytes, int advice) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(block), first = (start + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), (start + bytes - first) / page * page, advice);
}

bool serves(void* block, size_t alignment, size_t bytes) {
  if (block == nullptr || reinterpret_cast<uintptr_t>(block) % alignment != 0) return false;
  return fits(malloc_usable_size(block), bytes);
}

// Takes the kept block. Waits for it if a block that serves the request is in use. A wait in vain halves the next ones:
// then calls run side by side.
void* take(size_t bytes) {
  static std::atomic<int> halvings{0};
  auto is_expected = [bytes] {
    return std::any_of(std::begin(used), std::end(used), [bytes](size_t size) { return fits(size, bytes); });
  };
  void* spare = kept.exchange(nullptr);
  if (spare != nullptr || !is_expected()) return spare;
  const auto limit = std::chrono::nanoseconds(static_cast<int64_t>(kClearNanoseconds * bytes) >> halvings);
  const auto end = Clock::now() + limit;
  do {
    std::this_thread::sleep_for(kLookPause);
    spare = kept.exchange(nullptr);
  } while (spare == nullptr && is_expected() && Clock::now() < end);
  halvings = spare != nullptr ? 0 : std::min(halvings + 1, kMaxHalvings);
  return spare;
}

int allocate(void** block, size_t alignment, size_t bytes) {
  if (bytes < kMappedBytes) return posix_memalign(block, alignment, bytes);
  void* const spare = take(bytes);
  if (serves(spare, alignment, bytes)) {
    *block = spare;
  } else {
    free(spare);
    if (const int error = posix_memalign(block, alignment, bytes)) return error;
    advise(*block, bytes, MADV_HUGEPAGE);
  }
  exchange_used(0, malloc_usable_size(*block));
  free(kept.exchange(nullptr));  // The last call's block, if it was released in between.
  return 0;
}

void release(void* block) {
  const size_t size = block == nullptr ? 0 : malloc_usable_size(block);
  if (size < kMappedBytes) return free(block);
  if (count_used(size) == 1) {
    advise(block, size, MADV_FREE);
    block = kept.exchange(block);
  }
  exchange_used(size, 0);  // Only now: until then a call that needs such a block waits for it.
  free(block);
}

struct Replacement {
  const char* name;
  void* function;
};
const Replacement kReplacements[] = {{"posix_memalign", reinterpret_cast<void*>(&allocate)},
                                     {"free", reinterpret_cast<void*>(&release)}};

// The imports of a loaded library, from its dynamic section.
struct Imports {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* calls = nullptr;
  size_t count = 0;
};

Imports imports(const dl_phdr_info& library) {
  Imports found;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    for (auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
         entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB) found.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) found.names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_JMPREL) found.calls = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_PLTRELSZ) found.count = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
  }
  const bool is_whole = found.symbols != nullptr && found.names != nullptr && found.calls != nullptr;
  return is_whole ? found : Imports{};
}

// Replaces the entry of a call in a library, if it calls a function of kReplacements.
bool replace(ElfW(Addr) base, const ElfW(Rela)& call, const char* name) {
  for (const auto& [replaced, function] : kReplacements) {
    if (std::strcmp(name, replaced) != 0) continue;
    const auto entry = base + call.r_offset;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    // It is read-only if the library was linked with `-z now`.
    if (mprotect(reinterpret_cast<void*>(entry / page * page), page, PROT_READ | PROT_WRITE) != 0) return false;
    reinterpret_cast<std::atomic<void*>*>(entry)->store(function);
    return true;
  }
  return false;
}

// Replaces the entries in a library of jaxlib, and adds their number.
int replace_all(dl_phdr_info* library, size_t, void* replaced) {
  if (std::strstr(library->dlpi_name, kFolder) == nullptr) return 0;
  const Imports there = imports(*library);
  for (size_t i = 0; i < there.count; ++i) {
    const ElfW(Rela)& call = there.calls[i];
    const char* name = there.names + there.symbols[ELF64_R_SYM(call.r_info)].st_name;
    *static_cast<int*>(replaced) += replace(library->dlpi_addr, call, name);
  }
  return 0;
}

}  // namespace

// Requests huge pages from Linux for jaxlib's large blocks from now on, and reuses them. Returns whether jaxlib allocates
// in a way that allows it.
extern "C" int anytpu_use_huge_pages() {
  int replaced = 0;
  dl_iterate_phdr(replace_all, &replaced);
  return replaced > 0;
}
