#include "worker_runtime/checkpoint/checkpoint_save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLargestPart = std::size_t{8} << 20;      // what a store takes
constexpr auto kPatienceWithOthers = std::chrono::seconds(10);  // before the files of a failed save are removed
constexpr char kRefused = '!';                                  // begins a "start" that is none

// Durable, with every directory above it that is made.
void make_directory(const fs::path& directory) {
  std::error_code error;
  if (fs::is_directory(directory, error)) return;
  const auto parent = fs::absolute(directory).parent_path();
  if (parent != directory) make_directory(parent);
  if (!fs::create_directory(directory, error) && error)
    throw_errno("checkpoint", fmt::format("create \"{}\"", directory.string()), error.value());
  sync_directory(parent);
}

}  // namespace

fs::path CheckpointSave::saving() const { return options_.directory / saving_name(meta_.step, word_); }

CheckpointSave::Result CheckpointSave::run() noexcept {
  const bool leader = options_.rank == 0;
  try {
    leader ? begin() : join();
    write_part();
    if (leader) {
      lead();
    } else {
      result_.error =
          talk_.await("outcome", fmt::format("{}rank 0 did not say how the save of step {} went",
                                             result_.error.empty() ? "" : result_.error + "; ", meta_.step));
    }
  } catch (const std::exception& error) {
    result_.error = reason_of(error);
  }
  talk_.leave();
  return std::move(result_);
}

void CheckpointSave::begin() {
  try {
    word_ = make_save_word();
    if (meta_.step < 0) throw Error("checkpoint", fmt::format("step {} is negative", meta_.step));
    make_directory(options_.directory);
    make_directory(saving());
  } catch (const std::exception& error) {
    const auto text = fmt::format("rank 0: {}", reason_of(error));
    static_cast<void>(remove_leftovers(options_.directory));
    talk_.tell("start", kRefused + text);
    throw Error("checkpoint", text);
  }
  talk_.tell("start", fmt::format("{} {}", word_, meta_.step));
}

void CheckpointSave::join() {
  const auto text = talk_.await("start", fmt::format("rank 0 did not begin to save step {}", meta_.step));
  if (text.starts_with(kRefused)) throw Error("checkpoint", text.substr(1));
  const auto space = std::min(text.find(' '), text.size());
  word_ = text.substr(0, space);
  if (text.substr(space) != fmt::format(" {}", meta_.step))
    result_.error = fmt::format("it saves step {}, and rank 0 step{}", meta_.step, text.substr(space));
}

void CheckpointSave::write_part() {
  std::string text;
  try {
    if (!result_.error.empty()) throw Error("checkpoint", result_.error);
    if (!copy_fault_.empty()) throw Error("checkpoint", copy_fault_);
    std::error_code ignored;
    if (!fs::is_directory(saving(), ignored)) {
      throw Error("checkpoint",
                  fmt::format("the directory that rank 0 made is not there: is \"{}\" shared by all hosts?",
                              options_.directory.string()));
    }
    text = make_index(part_.write(saving(), options_.rank, options_.world, meta_.step, word_));
    result_.bytes_written = part_.bytes();
    if (text.size() > kLargestPart) {
      throw Error("checkpoint", fmt::format("the index of this rank's part has {} bytes, expected at most {}",
                                            text.size(), kLargestPart));
    }
  } catch (const std::exception& error) {
    text.clear();
    result_.error = fmt::format("rank {}: {}", options_.rank, reason_of(error));
    talk_.tell("failed", result_.error);
  }
  talk_.tell(fmt::format("part/{}", options_.rank), text);
}

void CheckpointSave::lead() {
  try {
    if (!result_.error.empty()) throw Error("checkpoint", result_.error);
    std::vector<CheckpointIndex> parts;
    for (int rank = 0; rank < options_.world; ++rank) {
      const auto text = talk_.await_part(rank);
      // A rank without a part has said why before.
      if (text.empty()) throw Error("checkpoint", talk_.await("failed", fmt::format("rank {} has no part", rank)));
      parts.push_back(parse_index(text, IndexScope::part));
    }
    check_visible(parts);
    try {
      commit(std::move(parts));
    } catch (const std::exception& error) {
      throw Error("checkpoint", fmt::format("rank 0: {}", reason_of(error)));
    }
  } catch (const std::exception& error) {
    result_.error = reason_of(error);
  }
  talk_.tell("outcome", result_.error);
  if (!result_.error.empty()) talk_.await_all_parts(kPatienceWithOthers);  // they write into what is removed now
  auto left = remove_leftovers(options_.directory);
  if (!result_.error.empty()) return;
  const auto old = remove_old_checkpoints(options_.directory, options_.keep);
  for (const auto& warning : {left, old})
    if (result_.warning.empty()) result_.warning = warning;
}

void CheckpointSave::check_visible(const std::vector<CheckpointIndex>& parts) const {
  for (int rank = 0; rank < options_.world; ++rank) {
    const auto path = (saving() / rank_file_name(rank)).string();
    const auto told = parts[static_cast<std::size_t>(rank)].files[0].size;
    std::string found;
    try {
      const auto size = open_to_read(path).size;
      if (size != told) found = fmt::format("it has {} bytes here", size);
    } catch (const std::exception& error) {
      found = reason_of(error);
    }
    if (!found.empty()) {
      throw Error("checkpoint", fmt::format("rank {} wrote {} bytes to \"{}\", which rank 0 does not find ({}): is the "
                                            "directory shared by all hosts?",
                                            rank, told, path, found));
    }
  }
}

void CheckpointSave::commit(std::vector<CheckpointIndex> parts) {
  CheckpointMetaFile meta{.meta = meta_, .world = options_.world, .save = word_, .sequence = 1, .index_hash = 0};
  for (const auto& found : list_checkpoints(options_.directory))
    if (found.meta) meta.sequence = std::max(meta.sequence, found.meta->sequence + 1);
  const auto name = checkpoint_name(meta_.step);
  write_descriptions(saving(), merge_parts(std::move(parts)), std::move(meta));
  write_text(saving() / "latest", name + "\n");  // while there may be no space
  const auto place = options_.directory / name;
  put_in_place(saving(), place);
  if (std::rename((place / "latest").c_str(), (options_.directory / "latest").c_str()) != 0)
    result_.warning =
        fmt::format("rename \"{}\": {}", (place / "latest").string(), std::generic_category().message(errno));
  sync_directory(options_.directory);
}

}  // namespace dtrun::runtime
