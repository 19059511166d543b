#include "worker_runtime/worker/step_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "worker_runtime/checkpoint/hash.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;

namespace {

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

fs::path make_temporary_directory(int rank) {
  auto pattern = (fs::temp_directory_path() / fmt::format("dtrun-worker-rank{}-XXXXXX", rank)).string();
  if (::mkdtemp(pattern.data()) == nullptr) throw_errno("worker", fmt::format("temporary directory {}", pattern));
  return pattern;
}

}  // namespace

fs::path make_log_directory(const WorkerEnvironment& environment, const std::string& chosen) {
  fs::path directory;
  if (!chosen.empty()) {
    directory = fs::path(chosen) / fmt::format("{}", environment.rank);
  } else if (environment.log_directory && !environment.log_directory->empty()) {
    directory = fs::path(*environment.log_directory) / fmt::format("{}", environment.rank);
  } else if (environment.error_file && fs::path(*environment.error_file).has_parent_path()) {
    directory = fs::path(*environment.error_file).parent_path();
  } else {
    return make_temporary_directory(environment.rank);
  }
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw SystemError("worker", fmt::format("log directory \"{}\"", directory.string()), error.value());
  return directory;
}

StepLog::StepLog(const fs::path& directory) : path_(directory / "steps.jsonl") {
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file_) throw_errno("worker", fmt::format("step log \"{}\"", path_.string()));
}

// What is no regular file keeps what it has.
void StepLog::start_anew() { static_cast<void>(::ftruncate(file_.value(), 0) == 0); }

nlohmann::ordered_json to_json(const TagBytes& bytes) {
  auto json = nlohmann::ordered_json::object();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag)
    json[std::string(name_of(static_cast<MemoryTag>(tag)))] = bytes[tag];
  return json;
}

void StepLog::write(const StepRecord& record, std::string_view device) {
  nlohmann::ordered_json line;
  line["step"] = record.step + 1;
  line["device"] = device;
  line["batch_xxh64"] = hash_text(record.batch_hash);
  line["loss"] = record.result.loss;
  line["grad_norm"] = record.result.grad_norm;
  line["lr"] = record.lr;
  line["tokens_per_second"] = record.tokens_per_second;
  line["milliseconds"] = {{"total", milliseconds(record.total)},
                          {"data", milliseconds(record.data)},
                          {"forward", milliseconds(record.result.forward)},
                          {"backward", milliseconds(record.result.backward)},
                          {"comm_exposed", milliseconds(record.result.comm)},
                          {"optimizer", milliseconds(record.result.optimizer)}};
  if (record.result.tensor_parallel > Clock::duration{})  // part of forward and backward
    line["milliseconds"]["tensor_parallel"] = milliseconds(record.result.tensor_parallel);
  line["bytes_sent"] = record.result.bytes_sent;
  line["peak_bytes"] = to_json(record.peak_bytes);
  if (record.predicted_peak_bytes) line["predicted_peak_bytes"] = to_json(*record.predicted_peak_bytes);
  line["last_collective"] = record.last_collective;
  if (record.result.skipped) {
    line["skipped"] = true;
    line["not_finite"] = record.not_finite;
    if (record.back_to_step) line["back_to_step"] = *record.back_to_step;
  }
  if (append(line.dump() + "\n")) return;
  const int cause = errno;
  if (lost_++ == 0) {
    log::warning("worker", "step log \"{}\": {}; training goes on without the lines that do not fit", path_.string(),
                 std::generic_category().message(cause));
  }
}

// All of it or nothing; false leaves the cause in errno.
bool StepLog::append(std::string_view text) {
  const auto start = ::lseek(file_.value(), 0, SEEK_END);
  while (!text.empty()) {
    const auto written = ::write(file_.value(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int cause = errno;
      // Half a line would spoil the next one; what is not a regular file cannot take it back.
      if (start >= 0) static_cast<void>(::ftruncate(file_.value(), start) == 0);
      errno = cause;
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace dtrun::runtime
