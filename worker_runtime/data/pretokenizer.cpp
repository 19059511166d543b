#include "worker_runtime/data/pretokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

// The pattern that OpenAI published with GPT-2 (encoder.py), with \s written out as Unicode's White_Space: PCRE2's \s
// has U+180E too.
#define DTRUN_SPACE R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr std::string_view kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" DTRUN_SPACE R"(\p{L}\p{N}]+|[)" DTRUN_SPACE
    R"(]+(?![^)" DTRUN_SPACE R"(])|[)" DTRUN_SPACE "]+";
#undef DTRUN_SPACE

std::string pcre2_text(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The white space of kPattern as UTF-8 that ends at text[end - 1].
bool space_before(std::string_view text, std::size_t end) {
  static constexpr std::string_view kWide[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\xa8",
                                               "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
  const auto before = text.substr(0, end);
  if (const auto last = before.back(); last == ' ' || (last >= '\t' && last <= '\r')) return true;
  if (std::ranges::any_of(kWide, [&](std::string_view space) { return before.ends_with(space); })) return true;
  const auto last = static_cast<unsigned char>(before.back());  // U+2000 to U+200A
  return last >= 0x80 && last <= 0x8a && before.size() >= 3 && before.substr(0, end - 1).ends_with("\xe2\x80");
}

}  // namespace

struct Pretokenizer::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  // 0 for no match.
  int find(std::string_view text, std::size_t from, std::uint32_t options) const {
    const int found =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options, match, nullptr);
    return found == PCRE2_ERROR_NOMATCH ? 0 : found;
  }
  // How much of the text, from its beginning, is UTF-8.
  std::size_t utf8_before(std::string_view text) const {
    const int found = find(text, 0, 0);
    const bool bad = found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21;
    if (found < 0 && !bad) throw Error("data", "PCRE2: " + pcre2_text(found));
    return bad ? pcre2_get_startchar(match) : text.size();
  }
};

Pretokenizer::Pretokenizer() : pattern_(std::make_unique<Pattern>()) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pattern_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(), PCRE2_UTF | PCRE2_UCP,
                                 &error, &where, nullptr);
  if (pattern_->code == nullptr) throw Error("data", fmt::format("PCRE2: {} at {}", pcre2_text(error), where));
  pcre2_jit_compile(pattern_->code, PCRE2_JIT_COMPLETE);  // where there is none, matching is slower
  pattern_->match = pcre2_match_data_create_from_pattern(pattern_->code, nullptr);
  if (pattern_->match == nullptr) throw Error("data", "PCRE2: no memory");
}
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

void Pretokenizer::split(std::string_view text, const std::function<void(std::string_view)>& word) const {
  while (!text.empty()) {
    const auto stretch = text.substr(0, pattern_->utf8_before(text));
    for (std::size_t at = 0; at < stretch.size();) {
      // Every character begins a word: a match is where it is looked for.
      const int found = pattern_->find(stretch, at, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED);
      if (found <= 0) throw Error("data", "PCRE2: " + (found < 0 ? pcre2_text(found) : "no word"));
      const auto end = pcre2_get_ovector_pointer(pattern_->match)[1];
      word(stretch.substr(at, end - at));
      at = end;
    }
    text.remove_prefix(stretch.size());
    if (text.empty()) return;
    word(text.substr(0, 1));
    text.remove_prefix(1);
  }
}

std::size_t safe_cut(std::string_view text) {
  for (auto at = text.find_last_of(" \t\n\r"); at != std::string_view::npos && at > 0;
       at = text.find_last_of(" \t\n\r", at - 1)) {
    if (!space_before(text, at)) return at;
  }
  return 0;
}

void for_pieces(std::string_view text, const std::function<void(std::string_view)>& piece) {
  constexpr std::size_t kPiece = std::size_t{256} << 10, kMost = std::size_t{4} << 20;
  while (!text.empty()) {
    std::size_t size = kPiece, cut = 0;
    for (; size < text.size() && cut == 0 && size <= kMost; size *= 2) cut = safe_cut(text.substr(0, size));
    if (cut == 0) {
      cut = std::min(text.size(), kMost);
      if (cut < text.size()) {
        for (int back = 0; back < 3 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; ++back) --cut;
      }
    }
    piece(text.substr(0, cut));
    text.remove_prefix(cut);
  }
}

}  // namespace dtrun::runtime
