#include "launcher/logs/line_splitter.hpp"

namespace dtrun::launcher {

void TailBuffer::add(std::string_view line) {
  if (limit_ == 0) return;
  std::string text;
  if (lines_.size() == limit_) {
    text = std::move(lines_.front());  // its memory is used again
    lines_.pop_front();
  }
  text.assign(line.substr(0, kMaxBytes));
  if (line.size() > kMaxBytes) text += "...";
  lines_.push_back(std::move(text));
}

}  // namespace dtrun::launcher
