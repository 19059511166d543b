#include "rendezvous/base/peer_user.hpp"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {
namespace {

struct Question {
  nlmsghdr header{};
  inet_diag_req_v2 request{};
};

constexpr timeval kPatience{0, 100'000};  // the kernel answers at once, or not at all

bool put_address(const std::string& host, int family, __be32* where) {
  return ::inet_pton(family, host.c_str(), where) == 1;
}

}  // namespace

std::optional<uid_t> user_of_peer(const SocketEnd& own, const SocketEnd& peer) noexcept {
  Question question;
  auto& request = question.request;
  const int family = peer.host.find(':') == std::string::npos ? AF_INET : AF_INET6;
  request.sdiag_family = static_cast<__u8>(family);
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = htons(peer.port);
  request.id.idiag_dport = htons(own.port);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (!put_address(peer.host, family, request.id.idiag_src) || !put_address(own.host, family, request.id.idiag_dst))
    return {};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;

  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket) return {};
  ::setsockopt(socket.value(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(socket.value(), &question, sizeof question, 0, reinterpret_cast<const sockaddr*>(&kernel),
               sizeof kernel) != static_cast<ssize_t>(sizeof question))
    return {};
  alignas(nlmsghdr) char answer[1024];
  const auto size = ::recv(socket.value(), answer, sizeof answer, 0);
  nlmsghdr header{};
  if (size < static_cast<ssize_t>(sizeof header + sizeof(inet_diag_msg))) return {};
  ::memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return {};  // NLMSG_ERROR: no such socket
  inet_diag_msg message{};
  ::memcpy(&message, answer + NLMSG_HDRLEN, sizeof message);
  return message.idiag_uid;
}

}  // namespace dtrun
