#include "launcher/process/temporary_note.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

#include "launcher/process/empty_tree.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::size_t kNoteBytes = 4096;  // a page; PATH_MAX
char* note = nullptr;

}  // namespace

void share_temporary_note() noexcept {
  void* const page = ::mmap(nullptr, kNoteBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) note = static_cast<char*>(page);
}

void note_temporary_directory(std::string_view path) noexcept {
  if (note == nullptr || path.size() >= kNoteBytes) return;
  note[0] = '\0';  // half a path must never be read
  if (path.empty()) return;
  std::memcpy(note + 1, path.data() + 1, path.size() - 1);
  note[path.size()] = '\0';
  static_cast<volatile char*>(note)[0] = path[0];
}

void remove_noted_directory() noexcept {
  if (note != nullptr && note[0] == '/') remove_empty_tree(note);
}

}  // namespace dtrun::launcher
