// The table that gpu_check prints: one row per check, as it ends.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace dtrun::runtime::gpu_check {

// A check that does not hold.
class Failed : public std::exception {
 public:
  explicit Failed(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

inline void expect(bool holds, const std::string& otherwise) {
  if (!holds) throw Failed(otherwise);
}

class Report {
 public:
  Report() { std::puts("check                             result   seconds  detail"); }

  // `check` returns the detail; what it throws is a failure.
  void row(std::string_view name, const std::function<std::string()>& check) {
    const auto start = std::chrono::steady_clock::now();
    std::string detail;
    bool good = true;
    try {
      detail = check();
    } catch (const std::exception& error) {
      detail = error.what();
      good = false;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    failed_ += good ? 0 : 1;
    std::puts(fmt::format("{:<33} {:<6} {:>9.2f}  {}", name, good ? "ok" : "FAILED", took.count(), detail).c_str());
    std::fflush(stdout);
  }
  void skip(std::string_view name, std::string_view why) {
    std::puts(fmt::format("{:<33} {:<6} {:>9}  {}", name, "-", "", why).c_str());
  }
  int failed() const { return failed_; }

 private:
  int failed_ = 0;
};

}  // namespace dtrun::runtime::gpu_check
