#include "worker_runtime/comm/gloo/mesh.hpp"

#include <fmt/format.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <vector>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::gloo {

namespace tcp = ::gloo::transport::tcp;

namespace {

// Longer than any wait: Gloo's own timeout must not pass.
constexpr auto kForever = std::chrono::milliseconds(std::chrono::hours(1000));

}  // namespace

Buffer::Buffer(std::unique_ptr<::gloo::transport::UnboundBuffer> inner, Alarm& alarm)
    : inner_(std::move(inner)), alarm_(alarm) {}

Buffer::State Buffer::take_received(Deadline deadline) {
  const Alarm::Entry entry(alarm_, *inner_, false, deadline);
  try {
    return inner_->waitRecv(nullptr, kForever) ? State::ready : State::waiting;
  } catch (const std::exception&) {
    return State::broken;
  }
}

Buffer::State Buffer::take_sent(Deadline deadline) {
  const Alarm::Entry entry(alarm_, *inner_, true, deadline);
  try {
    return inner_->waitSend(nullptr, kForever) ? State::ready : State::waiting;
  } catch (const std::exception&) {
    return State::broken;
  }
}

bool Buffer::broken() {
  inner_->abortWaitRecv();
  try {
    inner_->waitRecv(nullptr, kForever);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

namespace {

// Gloo's messages begin with the place in its source.
std::string reason(const std::exception& error) {
  const std::string text = error.what();
  const auto place = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return place == std::string::npos ? text : text.substr(place + 2);
}

// Gloo writes to sockets without MSG_NOSIGNAL: a peer that goes away would end this process.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

Engine::Engine(const std::string& address) {
  ignore_broken_pipes();
  try {
    device = tcp::CreateDevice(tcp::attr(address.c_str()));
  } catch (const std::exception& error) {
    throw CommError("comm", fmt::format("Gloo on address {}: {}", address, reason(error)));
  }
}

Mesh::Mesh(std::shared_ptr<Engine> engine, int rank, int size, std::chrono::milliseconds timeout)
    : engine_(std::move(engine)), rank_(rank), size_(size) {
  try {
    context_ = engine_->device->createContext(rank, size);
    // Gloo waits five times as long for a connection as it is told.
    context_->setTimeout(std::max<std::chrono::milliseconds>(timeout / 5, std::chrono::milliseconds(1)));
    for (int peer = 0; peer < size; ++peer) {
      std::string place(kAddressBytes, '\0');
      if (peer != rank) {
        const std::vector<char> bytes = context_->createPair(peer)->address().bytes();
        if (bytes.size() >= kAddressBytes) throw std::length_error("its address is too long");
        place[0] = static_cast<char>(bytes.size());
        std::copy(bytes.begin(), bytes.end(), place.begin() + 1);
      }
      addresses_ += place;
    }
  } catch (const std::exception& error) {
    throw CommError("comm", fmt::format("Gloo cannot listen for the other ranks: {}", reason(error)));
  }
}

Mesh::~Mesh() { close(); }

void Mesh::connect(int peer, const std::string& theirs) {
  const auto at = static_cast<std::size_t>(rank_) * kAddressBytes;
  const auto length = theirs.size() == addresses_.size() ? static_cast<unsigned char>(theirs[at]) : 0U;
  if (length == 0 || length >= kAddressBytes)
    throw CommError("comm", fmt::format("addresses of rank {}: {} bytes that make no sense", peer, theirs.size()));
  const auto first = theirs.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  try {
    context_->getPair(peer)->connect(std::vector<char>(first, first + length));
  } catch (const std::exception& error) {
    throw CommError("comm", fmt::format("no connection to rank {}: {}", peer, reason(error)));
  }
}

std::unique_ptr<Buffer> Mesh::buffer(void* data, std::size_t bytes) {
  return std::make_unique<Buffer>(context_->createUnboundBuffer(data, bytes), engine_->alarm);
}

bool Mesh::send(Buffer& from, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) noexcept {
  try {
    from.inner_->send(peer, slot, offset, bytes);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Mesh::receive(Buffer& into, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) noexcept {
  try {
    into.inner_->recv(peer, slot, offset, bytes);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Mesh::close() noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) context_->getPair(peer).reset();
  }
}

}  // namespace dtrun::runtime::gloo
