#include "rendezvous/contract/progress_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>

namespace dtrun {
namespace {

// Every std::int64_t fits. The file has one size from its first byte on.
constexpr std::size_t kSize = 21 + sizeof "began  set-up  loaded  first-step " + 4 * 20;
static_assert(kSize < kProgressFileMost);

std::int64_t now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

std::string_view read_text(const std::string& path, char (&text)[kProgressFileMost]) {
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t size = file ? ::read(file.value(), text, sizeof text) : -1;
  return {text, size > 0 ? static_cast<std::size_t>(size) : 0};
}

// A number at the front of `text`, after spaces; it is taken off. Nothing when there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  const auto start = std::min(text.find_first_not_of(' '), text.size());
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data() + start, text.data() + text.size(), number);
  if (error != std::errc()) return {};
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

std::optional<std::int64_t> first_line(std::string_view text) {
  const auto count = take_number(text);
  if (!count || *count < 0 || (!text.empty() && text.front() != '\n')) return {};
  return count;
}

std::optional<std::int64_t> take_field(std::string_view& text, std::string_view name) {
  if (!text.starts_with(name)) return {};
  text.remove_prefix(name.size());
  return take_number(text);
}

std::optional<Clock::time_point> moment(std::int64_t nanoseconds) {
  if (nanoseconds <= 0) return {};
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(nanoseconds)));
}

}  // namespace

ProgressWriter::ProgressWriter(const std::optional<std::string>& path) {
  if (path && !path->empty()) file_.reset(::open(path->c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
}

void ProgressWriter::set_up() noexcept {
  set_up_ = now();
  write();
}

void ProgressWriter::loaded(std::int64_t step) noexcept {
  loaded_ = now();
  count_ = began_ = step;
  write();
}

void ProgressWriter::finished_steps(std::int64_t count) noexcept {
  if (first_step_ == 0) first_step_ = now();
  count_ = count;
  write();
}

void ProgressWriter::write() noexcept {
  if (!file_) return;
  char number[24] = "", text[kSize + 1];
  if (count_ >= 0) std::snprintf(number, sizeof number, "%lld", static_cast<long long>(count_));
  const int size =
      std::snprintf(text, sizeof text, "%20s\nbegan %20lld set-up %20lld loaded %20lld first-step %20lld\n", number,
                    static_cast<long long>(began_), static_cast<long long>(set_up_), static_cast<long long>(loaded_),
                    static_cast<long long>(first_step_));
  if (::pwrite(file_.value(), text, static_cast<std::size_t>(size), 0) != size) file_.reset();
}

Progress read_whole_progress(const std::string& path) {
  char buffer[kProgressFileMost];
  auto text = read_text(path, buffer);
  Progress result;
  result.told = !text.empty();
  result.steps = first_line(text).value_or(-1);
  text.remove_prefix(std::min(text.find('\n'), text.size()));
  const auto began = take_field(text, "\nbegan ");
  const auto set_up = began ? take_field(text, " set-up ") : std::nullopt;
  const auto loaded = set_up ? take_field(text, " loaded ") : std::nullopt;
  const auto first_step = loaded ? take_field(text, " first-step ") : std::nullopt;
  if (!first_step || text != "\n") return result;
  if (*began >= 0) result.began_at = began;
  result.set_up = moment(*set_up);
  result.loaded = moment(*loaded);
  result.first_step = moment(*first_step);
  return result;
}

std::optional<std::int64_t> read_progress(const std::string& path) {
  char buffer[kProgressFileMost];
  return first_line(read_text(path, buffer));
}

}  // namespace dtrun
