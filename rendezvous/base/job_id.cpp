#include "rendezvous/base/job_id.hpp"

namespace dtrun {

bool is_job_id(std::string_view text) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.size() <= 128 && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace dtrun
