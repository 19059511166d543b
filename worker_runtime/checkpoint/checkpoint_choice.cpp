#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <sstream>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/verify.hpp"
#include "worker_runtime/comm/gather_texts.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

constexpr char kGood = '+', kBad = '-';  // begin what a rank tells

// Of this rank: what it found, as a text of one kind or the other.
template <class Action>
std::string told(Action&& action) {
  try {
    return kGood + action();
  } catch (const std::exception& error) {
    return kBad + reason_of(error);
  }
}

// What rank 0 tells. Throws Error on every rank when it could not do it.
template <class Action>
std::string of_rank_0(ProcessGroup& group, Action&& action) {
  const auto texts = gather_texts(group, group.rank() == 0 ? told(action) : std::string());
  if (texts[0].starts_with(kBad)) throw Error("checkpoint", texts[0].substr(1));
  return texts[0].substr(1);
}

// Verifies one checkpoint with all ranks. The answer is empty, or what is wrong with it.
std::string verify(const fs::path& path, ProcessGroup& group, CheckpointChoice& choice) {
  const auto texts = gather_texts(group, told([&] {
                                    const auto meta = read_meta(path);
                                    const auto index = read_index(path, meta);
                                    choice.meta = meta.meta;
                                    choice.world = meta.world;
                                    const auto share = verify_share(path, index, group.rank(), group.size());
                                    choice.bytes_verified += share.bytes;
                                    if (!share.fault.empty()) throw Error("checkpoint", share.fault);
                                    return hash_text(meta.index_hash);
                                  }));
  // Several ranks may have found the same; the first one speaks for them.
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (texts[rank].starts_with(kBad)) return texts[rank].substr(1);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0])
      return fmt::format("rank {} sees another index.json than rank 0: is the directory shared by all hosts?", rank);
  }
  return {};
}

CheckpointChoice choose(const fs::path& directory, ProcessGroup& group) {
  const auto lines = of_rank_0(group, [&] {
    std::string text;
    for (const auto& found : list_checkpoints(directory)) text += found.name() + "/" + found.fault + '\0';
    return text;
  });
  CheckpointChoice choice;
  std::istringstream candidates(lines);
  for (std::string line; std::getline(candidates, line, '\0');) {
    const auto name = line.substr(0, line.find('/'));
    auto fault = line.substr(name.size() + 1);
    if (fault.empty()) fault = verify(directory / name, group, choice);
    if (fault.empty()) {
      choice.path = directory / name;
      return choice;
    }
    choice.passed_over.push_back(fmt::format("{}: {}", name, fault));
  }
  choice.meta = {};
  choice.world = 0;
  return choice;
}

}  // namespace

CheckpointChoice choose_checkpoint(const fs::path& directory, ProcessGroup& group) { return choose(directory, group); }

CheckpointChoice open_checkpoint(const fs::path& path, ProcessGroup& group) {
  const auto fail = [&](const std::string& what) {
    throw UsageError("checkpoint", fmt::format("\"{}\" {}", path.string(), what));
  };
  const auto kind = of_rank_0(group, [&]() -> std::string {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) return fs::exists(path, ignored) ? "file" : "nothing";
    return fs::exists(path / "meta.json", ignored) || fs::exists(path / "index.json", ignored) ? "one" : "several";
  });
  if (kind == "nothing") fail("is not there");
  if (kind == "file") fail("is no directory: expected a checkpoint, or a directory of them");
  CheckpointChoice choice;
  if (kind == "one") {
    if (const auto fault = verify(path, group, choice); !fault.empty()) fail("is no good checkpoint: " + fault);
    choice.path = path;
    return choice;
  }
  choice = choose(path, group);
  if (!choice.path) {
    fail(choice.passed_over.empty() ? std::string("holds no checkpoint")
                                    : fmt::format("holds no good checkpoint: {}", fmt::join(choice.passed_over, "; ")));
  }
  return choice;
}

}  // namespace dtrun::runtime
