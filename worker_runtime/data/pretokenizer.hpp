// The words that byte-level BPE works in, cut out of text by GPT-2's regular expression.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace dtrun::runtime {

// One thread at a time. Throws Error when PCRE2 fails.
class Pretokenizer {
 public:
  Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Calls `word` for every word of `text`, in order: together they are the text. A byte that is no UTF-8 is a word of
  // its own.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

// The length of the longest beginning of `text` that can be split without the rest, with the words of the whole: it
// ends before white space that follows something else. 0: there is none.
std::size_t safe_cut(std::string_view text);

// Calls `piece` for a text of any size in pieces that are cut at safe places, together the text. Where a stretch of
// several MiB has none it is cut between characters, and a word may come out as two.
void for_pieces(std::string_view text, const std::function<void(std::string_view)>& piece);

}  // namespace dtrun::runtime
