// Huge pages for XLA's large buffers.
//
// XLA allocates the temporary memory of each call anew. glibc maps blocks of 32 MB and more from the kernel and returns
// them at once, so each call has a page fault for every 4 KB that it touches. With huge pages it has one for every 2 MB.
// Linux provides them on request (`madvise`, its default), and XLA does not request them.
//
// Idea: jaxlib calls `posix_memalign` through its import table. Its entry is replaced by a function that calls glibc's
// and advises the kernel. The memory belongs to glibc: `free` and all sizes are unchanged, and no memory is cached.

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

// Minimum size for which glibc maps a block of its own (DEFAULT_MMAP_THRESHOLD_MAX).
constexpr size_t kMappedBytes = size_t{32} << 20;

constexpr char kAllocate[] = "posix_memalign";
constexpr char kFolder[] = "/jaxlib/";

int allocate(void** block, size_t alignment, size_t bytes) {
  const int error = posix_memalign(block, alignment, bytes);
  if (error != 0 || bytes < kMappedBytes) return error;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(*block), first = (start + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), (start + bytes - first) / page * page, MADV_HUGEPAGE);  // advice: may fail
  return error;
}

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

// Replaces the entry in a library of jaxlib, and increments the number of replaced entries.
int replace(dl_phdr_info* library, size_t, void* replaced) {
  if (std::strstr(library->dlpi_name, kFolder) == nullptr) return 0;
  const Imports there = imports(*library);
  for (size_t i = 0; i < there.count; ++i) {
    const ElfW(Rela)& call = there.calls[i];
    if (std::strcmp(there.names + there.symbols[ELF64_R_SYM(call.r_info)].st_name, kAllocate) != 0) continue;
    const auto entry = library->dlpi_addr + call.r_offset;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    // It is read-only if the library was linked with `-z now`.
    if (mprotect(reinterpret_cast<void*>(entry / page * page), page, PROT_READ | PROT_WRITE) != 0) continue;
    reinterpret_cast<std::atomic<decltype(&allocate)>*>(entry)->store(&allocate);
    ++*static_cast<int*>(replaced);
  }
  return 0;
}

}  // namespace

// Requests huge pages from Linux for jaxlib's large blocks from now on. Returns whether they are requested.
extern "C" int anytpu_use_huge_pages() {
  int replaced = 0;
  dl_iterate_phdr(replace, &replaced);
  return replaced > 0;
}
