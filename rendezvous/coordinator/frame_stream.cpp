#include "rendezvous/coordinator/frame_stream.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include <utility>

namespace dtrun::rendezvous {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 10;
constexpr auto kFarewell = std::chrono::seconds(1);

std::string text_of(asio::ip::address address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address.to_string();
}

}  // namespace

FrameStream::FrameStream(asio::ip::tcp::socket socket, std::size_t max_message)
    : socket_(std::move(socket)), farewell_(socket_.get_executor()) {
  splitter_.limit(max_message);
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

std::string FrameStream::local_address() const {
  boost::system::error_code error;
  const auto end = socket_.local_endpoint(error);
  return error ? std::string() : text_of(end.address());
}

void FrameStream::start(Listener listener) {
  listener_ = std::make_shared<const Listener>(std::move(listener));
  read();
}

void FrameStream::pass_to(Listener listener, std::size_t max_message) {
  if (!open_ || finishing_) return;
  listener_ = std::make_shared<const Listener>(std::move(listener));
  splitter_.limit(max_message);
}

void FrameStream::read() {
  socket_.async_read_some(asio::buffer(input_),
                          [self = shared_from_this()](const boost::system::error_code& error, std::size_t size) {
                            if (!self->open_) return;
                            if (error) return self->end(std::string(kConnectionEnded));
                            self->take({self->input_.data(), size});
                            if (self->open_) self->read();
                          });
}

void FrameStream::take(std::string_view bytes) {
  try {
    while (open_ && !finishing_) {
      const auto message = splitter_.next(bytes);
      if (!message) return;
      const auto listener = listener_;
      listener->message(*message);
    }
  } catch (const MessageError& error) {
    end(error.text());
  }
}

void FrameStream::send(std::string frame) {
  if (!open_ || finishing_) return;
  if (waiting_.size() + frame.size() > kMaxWaitingBytes) return end("it does not read");
  waiting_ += frame;
  if (sending_.empty()) write();
}

void FrameStream::write() {
  sending_.swap(waiting_);
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
                      self->sending_.clear();
                      if (!self->open_) return;
                      if (error) return self->end(std::string(kConnectionEnded));
                      if (!self->waiting_.empty()) return self->write();
                      if (self->finishing_) self->close();
                    });
}

void FrameStream::finish() {
  if (!open_ || finishing_) return;
  finishing_ = true;
  listener_.reset();
  if (sending_.empty()) return close();
  farewell_.expires_after(kFarewell);
  farewell_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->close();
  });
}

void FrameStream::close() {
  if (!open_) return;
  open_ = false;
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  farewell_.cancel();
  listener_.reset();
}

void FrameStream::end(const std::string& why) {
  if (!open_) return;
  const auto listener = listener_;
  close();
  if (listener) listener->ended(why);
}

}  // namespace dtrun::rendezvous
