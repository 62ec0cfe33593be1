#include "common/io/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "common/device/error.h"
#include "common/io/json.h"

namespace ref5d {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library

// Bits of one element; nothing for a dtype that is unknown here.
std::optional<std::int64_t> element_bits(std::string_view dtype) {
  static const std::map<std::string_view, std::int64_t> bits = {
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"I64", 64},    {"U64", 64}, {"F64", 64}, {"C64", 64}};
  const auto found = bits.find(dtype);
  if (found == bits.end()) return std::nullopt;
  return found->second;
}

// The dtype a tensor has in memory after reading.
Dtype dtype_in_memory(const std::string& dtype, const std::string& path, const std::string& name) {
  if (dtype == "F64") return Dtype::kFp64;
  if (dtype == "F32" || dtype == "F16") return Dtype::kFp32;
  if (dtype == "BF16") return Dtype::kBf16;
  if (dtype == "I32" || dtype == "I64") return Dtype::kInt32;
  throw InputError(
      fmt::format("{}: tensor '{}' has dtype {}; F64, F32, F16, BF16, I32 and I64 can be read", path, name, dtype));
}

// IEEE half to single, exactly.
float float_from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

void widen_halves(std::span<const std::byte> raw, std::span<std::byte> out) {
  for (std::size_t i = 0; i < raw.size() / 2; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, raw.data() + 2 * i, 2);
    const float value = float_from_half(half);
    std::memcpy(out.data() + 4 * i, &value, 4);
  }
}

void narrow_int64(std::span<const std::byte> raw, std::span<std::byte> out, const std::string& path, const std::string& name) {
  for (std::size_t i = 0; i < raw.size() / 8; ++i) {
    std::int64_t wide = 0;
    std::memcpy(&wide, raw.data() + 8 * i, 8);
    if (!std::in_range<std::int32_t>(wide)) {
      throw InputError(fmt::format("{}: tensor '{}' holds {} at element {}; I64 values must fit int32", path, name, wide, i));
    }
    const auto value = static_cast<std::int32_t>(wide);
    std::memcpy(out.data() + 4 * i, &value, 4);
  }
}

std::int64_t checked_int(const Json& value, const std::string& where) {
  if (!value.is_int() || value.as_int() < 0) throw InputError(fmt::format("{} must be an integer of at least 0", where));
  return value.as_int();
}

// The bytes that shape and dtype ask for; nothing if the dtype is unknown. InputError on overflow.
std::optional<std::int64_t> bytes_of(const TensorInfo& info, const std::string& where) {
  std::int64_t n = 1;
  bool overflow = false;
  bool is_empty = false;
  for (const std::int64_t dim : info.shape) {
    is_empty = is_empty || dim == 0;
    overflow = overflow || __builtin_mul_overflow(n, std::max<std::int64_t>(dim, 1), &n);
  }
  const auto bits = element_bits(info.dtype);
  if (bits) overflow = overflow || __builtin_mul_overflow(n, *bits, &n);
  if (overflow) throw InputError(fmt::format("{} has a shape whose size overflows 64 bits", where));
  if (is_empty) return 0;
  if (!bits) return std::nullopt;
  if (n % 8 != 0) throw InputError(fmt::format("{} has {} bits, which is not a whole number of bytes", where, n));
  return n / 8;
}

}  // namespace

std::int64_t TensorInfo::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t dim : shape) n *= dim;
  return n;
}

const char* safetensors_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64: return "F64";
    case Dtype::kFp32: return "F32";
    case Dtype::kBf16: return "BF16";
    case Dtype::kInt32: return "I32";
  }
  return "?";
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  if (file_.size() < kLengthBytes) {
    throw InputError(
        fmt::format("{} is not a safetensors file: it has {} bytes, its header length alone needs 8", path, file_.size()));
  }
  std::uint64_t length = 0;
  file_.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeaderBytes || length < 2) {
    throw InputError(fmt::format("{} is not a safetensors file: it claims a header of {} bytes; 2 to {} are allowed", path,
                                 length, kMaxHeaderBytes));
  }
  data_start_ = kLengthBytes + static_cast<std::int64_t>(length);
  if (data_start_ > file_.size()) {
    throw InputError(
        fmt::format("{} is truncated (or not a safetensors file): its header alone ends at byte {}, the file has {}", path,
                    data_start_, file_.size()));
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (header.front() != '{')
    throw InputError(fmt::format("{} is not a safetensors file: its header does not begin with '{{'", path));
  parse_header(header);
  check_layout();
}

void SafetensorsFile::parse_header(const std::string& header) {
  const Json json = Json::parse(header, fmt::format("the header of {}", path()));
  for (const auto& [name, value] : json.members()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw InputError(fmt::format("{}: __metadata__ must be an object of strings", path()));
      for (const auto& [key, text] : value.members()) {
        if (!text.is_string()) throw InputError(fmt::format("{}: __metadata__ '{}' must be a string", path(), key));
        metadata_[key] = text.as_string();
      }
      continue;
    }
    const std::string where = fmt::format("{}: tensor '{}'", path(), name);
    const Json* dtype = value.find("dtype");
    const Json* shape = value.find("shape");
    const Json* offsets = value.find("data_offsets");
    if (dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array() || offsets == nullptr ||
        !offsets->is_array() || offsets->size() != 2) {
      throw InputError(where + " must have a dtype (string), a shape (array) and data_offsets (two integers)");
    }
    Entry entry;
    entry.info.dtype = dtype->as_string();
    for (const Json& dim : shape->items()) entry.info.shape.push_back(checked_int(dim, where + ": every dim of its shape"));
    entry.begin = checked_int(offsets->at(std::size_t{0}), where + ": its first data offset");
    entry.end = checked_int(offsets->at(std::size_t{1}), where + ": its second data offset");
    if (entry.end < entry.begin)
      throw InputError(fmt::format("{} ends at offset {}, before its begin at {}", where, entry.end, entry.begin));
    const auto bytes = bytes_of(entry.info, where);
    if (bytes && *bytes != entry.end - entry.begin) {
      throw InputError(fmt::format("{} needs {} bytes for its shape and dtype {}, its offsets give it {}", where, *bytes,
                                   entry.info.dtype, entry.end - entry.begin));
    }
    entries_.emplace(name, std::move(entry));
  }
}

void SafetensorsFile::check_layout() const {
  std::vector<std::pair<const Entry*, const std::string*>> by_offset;
  by_offset.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) by_offset.emplace_back(&entry, &name);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  const std::int64_t data_bytes = file_.size() - data_start_;
  const std::string* previous = nullptr;
  std::int64_t covered = 0;
  for (const auto& [entry, name] : by_offset) {
    if (entry->begin < covered) {
      throw InputError(fmt::format("{}: tensor '{}' begins at offset {}, inside tensor '{}', which ends at {}", path(), *name,
                                   entry->begin, *previous, covered));
    }
    if (entry->begin > covered) {
      throw InputError(fmt::format("{}: tensor '{}' begins at offset {}, leaving a hole from {}; the data must be contiguous",
                                   path(), *name, entry->begin, covered));
    }
    previous = name;
    covered = entry->end;
  }
  if (covered > data_bytes) {
    // Unsigned, because an absurd offset may lie close to 2^63.
    const std::uint64_t expected = static_cast<std::uint64_t>(data_start_) + static_cast<std::uint64_t>(covered);
    throw InputError(
        fmt::format("{} is truncated: its header asks for {} bytes, the file has {}", path(), expected, file_.size()));
  }
  if (covered < data_bytes) {
    throw InputError(fmt::format("{} is too long: its header asks for {} bytes, the file has {}", path(), data_start_ + covered,
                                 file_.size()));
  }
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw InputError(fmt::format("{} holds no tensor '{}' among its {}", path(), name, entries_.size()));
  return found->second;
}

HostTensor SafetensorsFile::read(const std::string& name) const { return read_elements(name, 0, info(name).shape); }

HostTensor SafetensorsFile::read_range(const std::string& name, std::int64_t first, std::int64_t count) const {
  const std::int64_t n = info(name).numel();
  if (first < 0 || count < 0 || first > n || count > n - first) {
    throw InputError(
        fmt::format("{}: {} elements from {} of tensor '{}' are asked for, it has {}", path(), count, first, name, n));
  }
  return read_elements(name, first, {count});
}

HostTensor SafetensorsFile::read_elements(const std::string& name, std::int64_t first, std::vector<std::int64_t> shape) const {
  const Entry& e = entry(name);
  HostTensor tensor{dtype_in_memory(e.info.dtype, path(), name), std::move(shape), {}};
  const std::int64_t file_element = *element_bits(e.info.dtype) / 8;
  const auto n = static_cast<std::size_t>(tensor.numel());
  const std::int64_t offset = data_start_ + e.begin + first * file_element;
  tensor.data.resize(n * dtype_size(tensor.dtype));
  if (e.info.dtype != "F16" && e.info.dtype != "I64") {
    file_.read_at(offset, tensor.data);
    return tensor;
  }
  std::vector<std::byte> raw(n * static_cast<std::size_t>(file_element));
  file_.read_at(offset, raw);
  if (e.info.dtype == "F16") {
    widen_halves(raw, tensor.data);
  } else {
    narrow_int64(raw, tensor.data, path(), name);
  }
  return tensor;
}

}  // namespace ref5d
