#include "worker_runtime/checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/output_file.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;  // as the reference implementation
constexpr std::size_t kChunk = std::size_t{1} << 16;   // elements converted at once

float from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? (mantissa == 0 ? HUGE_VALF : std::nanf(""))
                          : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class Stored, class Convert>
void convert(std::span<const std::byte> bytes, float* out, Convert&& one) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof stored);
    out[i] = one(stored);
  }
}

bool converts_to_f32(std::string_view dtype) { return dtype == "BF16" || dtype == "F16" || dtype == "F64"; }

void convert_to_f32(std::string_view dtype, std::span<const std::byte> bytes, float* out) {
  if (dtype == "BF16") {
    convert<std::uint16_t>(bytes, out,
                           [](std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); });
  } else if (dtype == "F16") {
    convert<std::uint16_t>(bytes, out, from_half);
  } else {
    convert<double>(bytes, out, [](double value) { return static_cast<float>(value); });
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_) throw_errno("checkpoint", fmt::format("open \"{}\"", path));
  struct stat status {};
  if (::fstat(file_.value(), &status) != 0) throw_errno("checkpoint", fmt::format("stat \"{}\"", path));
  const auto size = static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
  if (!S_ISREG(status.st_mode) || size < kLengthBytes) {
    throw Error("checkpoint", fmt::format("\"{}\" is not a good safetensors file: {}", path,
                                          S_ISREG(status.st_mode) ? "shorter than 8 bytes" : "not a regular file"));
  }
  std::uint64_t length = 0;
  read_at(file_, path_, 0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kLargestHeader || length > size - kLengthBytes) {
    throw Error("checkpoint",
                fmt::format("\"{}\" is not a good safetensors file: its header announces {} bytes, expected at most {}",
                            path, length, std::min(kLargestHeader, size - kLengthBytes)));
  }
  std::string header(length, '\0');
  read_at(file_, path_, kLengthBytes, std::as_writable_bytes(std::span(header)));
  data_start_ = kLengthBytes + length;
  SafetensorsHeader parsed = parse_safetensors_header(header, size - data_start_, path_);
  entries_ = std::move(parsed.entries);
  metadata_ = std::move(parsed.metadata);
}

const SafetensorsEntry& SafetensorsReader::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw Error("checkpoint", fmt::format("\"{}\" has no tensor \"{}\"", path_, name));
  return found->second;
}

void SafetensorsReader::read(std::string_view name, const Tensor& destination) const {
  const SafetensorsEntry& source = entry(name);
  if (!destination.defined() || destination.shape() != source.shape) {
    throw Error("checkpoint", fmt::format("tensor \"{}\" of \"{}\" has shape {}, expected {}", name, path_,
                                          source.shape.to_string(), destination.shape().to_string()));
  }
  read_elements(name, 0, destination);
}

void SafetensorsReader::read_elements(std::string_view name, std::uint64_t first, const Tensor& destination) const {
  const SafetensorsEntry& source = entry(name);
  const auto numel = static_cast<std::uint64_t>(source.shape.numel());
  const auto count = static_cast<std::uint64_t>(destination.numel());
  if (first > numel || count > numel - first) {
    throw Error("checkpoint", fmt::format("elements {} to {} of tensor \"{}\" of \"{}\", which has {}", first,
                                          first + count, name, path_, numel));
  }
  if (destination.device() != nullptr) {
    const Tensor read = Tensor::on_host(destination.shape(), destination.dtype());
    read_elements(name, first, read);
    return destination.copy_from(read);
  }
  const std::size_t size = safetensors_element_size(source.dtype);
  const std::uint64_t start = data_start_ + source.begin + first * size;
  if (source.dtype == safetensors_dtype(destination.dtype())) {
    read_at(file_, path_, start, {destination.raw(), destination.bytes()});
    return;
  }
  if (destination.dtype() != DType::f32 || !converts_to_f32(source.dtype)) {
    throw Error("checkpoint", fmt::format("tensor \"{}\" of \"{}\" is {}, cannot be read as {}", name, path_,
                                          source.dtype, name_of(destination.dtype())));
  }
  std::vector<std::byte> buffer(std::min<std::size_t>(count, kChunk) * size);
  for (std::uint64_t done = 0; done < count;) {
    const auto now = std::min<std::uint64_t>(count - done, kChunk);
    const std::span<std::byte> part(buffer.data(), now * size);
    read_at(file_, path_, start + done * size, part);
    convert_to_f32(source.dtype, part, destination.data<float>() + done);
    done += now;
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorDescription> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_("checkpoint", path, OutputFile::Durable::yes) {
  const std::string header = make_safetensors_header(tensors_, metadata);
  const std::uint64_t length = header.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(std::as_bytes(std::span(header)));
  skip_empty();
}

void SafetensorsWriter::write(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  DTRUN_ASSERT(next_ < tensors_.size() && written_ == 0 && tensor.shape() == tensors_[next_].shape);
  write_elements(tensor);
}

void SafetensorsWriter::write_elements(const Tensor& part) {
  if (part.numel() == 0) return;
  DTRUN_ASSERT(next_ < tensors_.size());
  const auto& described = tensors_[next_];
  written_ += part.numel();
  DTRUN_ASSERT(part.dtype() == described.dtype && written_ <= described.shape.numel());
  const Tensor here = part.to_host();
  file_.write({here.raw(), here.bytes()});
  if (written_ < described.shape.numel()) return;
  ++next_;
  skip_empty();
}

void SafetensorsWriter::skip_empty() {
  written_ = 0;
  while (next_ < tensors_.size() && tensors_[next_].shape.numel() == 0) ++next_;
}

void SafetensorsWriter::commit() {
  DTRUN_ASSERT(next_ == tensors_.size());
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorDescription> descriptions;
  for (const NamedTensor& item : tensors) {
    if (!item.tensor.defined())
      throw Error("checkpoint", fmt::format("tensor \"{}\" to write has no elements bound", item.name));
    descriptions.push_back({item.name, item.tensor.dtype(), item.tensor.shape()});
  }
  SafetensorsWriter writer(path, std::move(descriptions), metadata);
  for (const NamedTensor& item : tensors) writer.write(item.tensor);
  writer.commit();
}

std::vector<std::string> load_tensors(const SafetensorsReader& reader, const std::vector<NamedTensor>& wanted,
                                      std::string_view prefix) {
  return load_tensors(std::span(&reader, 1), wanted, prefix);
}

std::vector<TensorPlace> find_tensors(std::span<const SafetensorsReader> parts, const std::vector<std::string>& wanted,
                                      std::string_view prefix) {
  DTRUN_ASSERT(!parts.empty());
  std::vector<TensorPlace> places;
  std::vector<std::string> missing;
  for (const auto& wanted_name : wanted) {
    const auto find = [&](std::string name) {
      const auto part = std::ranges::find_if(parts, [&](const auto& reader) { return reader.contains(name); });
      if (part == parts.end()) return false;
      places.push_back({&*part, std::move(name)});
      return true;
    };
    if (!find(wanted_name) && !find(std::string(prefix) + wanted_name)) missing.push_back(wanted_name);
  }
  if (!missing.empty()) {
    const std::size_t shown = std::min<std::size_t>(missing.size(), 5);
    throw Error("checkpoint",
                fmt::format("\"{}\"{} lacks {} of {} tensors: {}{}", parts.front().path(),
                            parts.size() > 1 ? fmt::format(" with {} more", parts.size() - 1) : "", missing.size(),
                            wanted.size(), fmt::join(std::span(missing).first(shown), ", "),
                            shown < missing.size() ? ", ..." : ""));
  }
  return places;
}

std::vector<std::string> load_tensors(std::span<const SafetensorsReader> parts, const std::vector<NamedTensor>& wanted,
                                      std::string_view prefix) {
  std::vector<std::string> names;
  for (const NamedTensor& item : wanted) names.push_back(item.name);
  const auto places = find_tensors(parts, names, prefix);
  std::set<std::string, std::less<>> used;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    places[i].part->read(places[i].name, wanted[i].tensor);
    used.insert(places[i].name);
  }
  std::vector<std::string> ignored;
  for (const auto& part : parts) {
    for (const auto& [name, entry] : part.entries()) {
      if (!used.contains(name)) ignored.push_back(name);
    }
  }
  return ignored;
}

}  // namespace dtrun::runtime
