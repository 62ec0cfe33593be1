#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "common/device/error.h"
#include "common/io/json.h"
#include "common/io/safetensors.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_contains;
using testing::TempDir;

const std::string kGolden = REF5D_SOURCE_DIR "/tests/oracle/golden/";

std::string file_of(const std::string& header, const std::string& data) {
  const std::vector<std::uint64_t> length = {header.size()};
  return bytes_of(length) + header + data;
}

// A header with one entry, for tensor 'a'.
std::string header_with(const std::string& entry) { return R"({"a":)" + entry + "}"; }

NamedTensors some_tensors() {
  NamedTensors tensors;
  std::vector<double> values(15);
  std::iota(values.begin(), values.end(), -7.0);
  tensors["z.fp64"] = HostTensor::from_doubles(values, {3, 5}, Dtype::kFp64);
  tensors["b.fp32"] = HostTensor::from_doubles(values, {15, 1}, Dtype::kFp32);
  tensors["a.bf16"] = HostTensor::from_doubles(values, {5, 3}, Dtype::kBf16);
  tensors["c.int32"] = HostTensor::from_doubles(values, {15}, Dtype::kInt32);
  tensors["a.scalar"] = HostTensor::from_doubles({0.1}, {}, Dtype::kFp64);
  tensors["a.empty"] = HostTensor::from_doubles({}, {0, 4}, Dtype::kFp64);
  tensors["y.empty"] = HostTensor::from_doubles({}, {4, 0}, Dtype::kInt32);
  tensors["name with \"quotes\" and \xc3\xa9"] = HostTensor::from_doubles({1, 2}, {2}, Dtype::kBf16);
  return tensors;
}

TEST(IoSafetensors, RoundTrip) {
  const TempDir dir;
  const NamedTensors tensors = some_tensors();
  write_safetensors(dir.path("f"), tensors, {{"format", "pt"}, {"note", "line\nline"}});
  const SafetensorsFile file(dir.path("f"));
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"note", "line\nline"}}));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
    ASSERT_TRUE(file.contains(name));
    EXPECT_EQ(file.info(name).dtype, safetensors_dtype(tensor.dtype));
    const HostTensor back = file.read(name);
    EXPECT_EQ(back.dtype, tensor.dtype);
    EXPECT_EQ(back.shape, tensor.shape);
    EXPECT_EQ(back.data, tensor.data) << name;
  }
  EXPECT_EQ(file.names(), names);
  EXPECT_FALSE(file.contains("absent"));
  EXPECT_FALSE(file.contains("__metadata__"));
}

TEST(IoSafetensors, NothingIsAValidFile) {
  const TempDir dir;
  write_safetensors(dir.path("f"), {});
  EXPECT_TRUE(SafetensorsFile(dir.path("f")).names().empty());
}

// What other readers rely on: the data begin at a multiple of 8 and every tensor is aligned to its element.
TEST(IoSafetensors, WrittenDataAreAligned) {
  const TempDir dir;
  for (int extra = 0; extra < 9; ++extra) {
    NamedTensors tensors = some_tensors();
    tensors[std::string(static_cast<std::size_t>(extra) + 1, 'n')] = HostTensor::from_doubles({1}, {1}, Dtype::kBf16);
    write_safetensors(dir.path("f"), tensors);
    const InputFile file(dir.path("f"));
    std::uint64_t length = 0;
    file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    ASSERT_EQ(length % 8, 0u);
    std::string header(length, ' ');
    file.read_at(8, std::as_writable_bytes(std::span(header)));
    for (const auto& [name, entry] : Json::parse(header).members()) {
      const auto size = static_cast<std::int64_t>(dtype_size(tensors.at(name).dtype));
      ASSERT_EQ(entry.at("data_offsets").at(std::size_t{0}).as_int() % size, 0) << name;
    }
  }
}

TEST(IoSafetensors, ReadsAFileAsSpecified) {
  const TempDir dir;
  const std::vector<float> values = {1.5F, -2.0F};
  const std::string header =
      R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},"a":{"data_offsets":[0,2],"dtype":"BF16","shape":[]}}  )";
  const SafetensorsFile file(dir.put("f", file_of(header, "\x80\x3f" + bytes_of(values))));
  EXPECT_EQ(file.read("a").to_doubles(), std::vector<double>{1});
  EXPECT_EQ(file.read("b").to_doubles(), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(file.read("b").shape, (std::vector<std::int64_t>{1, 2}));
}

TEST(IoSafetensors, ReadsRanges) {
  const TempDir dir;
  const NamedTensors tensors = some_tensors();
  write_safetensors(dir.path("f"), tensors);
  const SafetensorsFile file(dir.path("f"));
  for (const std::string name : {"z.fp64", "a.bf16", "c.int32"}) {
    const std::vector<double> all = tensors.at(name).to_doubles();
    for (std::int64_t first = 0; first <= 15; ++first) {
      for (std::int64_t count = 0; count <= 15 - first; ++count) {
        ASSERT_EQ(file.read_range(name, first, count).to_doubles(),
                  std::vector<double>(all.begin() + first, all.begin() + first + count));
      }
    }
    error_of<InputError>([&] { (void)file.read_range(name, 10, 6); });
    error_of<InputError>([&] { (void)file.read_range(name, -1, 1); });
    error_of<InputError>([&] { (void)file.read_range(name, 1, std::numeric_limits<std::int64_t>::max()); });
  }
}

TEST(IoSafetensors, WidensHalvesExactly) {
  const TempDir dir;
  std::vector<std::uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  const SafetensorsFile file(
      dir.put("f", file_of(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", bytes_of(halves))));
  const HostTensor tensor = file.read("h");
  EXPECT_EQ(tensor.dtype, Dtype::kFp32);
  const std::vector<double> values = tensor.to_doubles();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int exponent = static_cast<int>((i >> 10) & 31);
    const double mantissa = static_cast<double>(i & 1023);
    const double sign = i < 32768 ? 1 : -1;
    if (exponent == 31) {
      ASSERT_TRUE(mantissa == 0 ? std::isinf(values[i]) && std::signbit(values[i]) == (sign < 0) : std::isnan(values[i]));
      continue;
    }
    const double wanted = exponent == 0 ? mantissa * 0x1p-24 : std::ldexp(1 + mantissa / 1024, exponent - 15);
    ASSERT_EQ(values[i], sign * wanted) << i;
    ASSERT_EQ(std::signbit(values[i]), sign < 0);
  }
}

TEST(IoSafetensors, NarrowsInt64IfItFits) {
  const TempDir dir;
  const std::string header = R"({"i":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}})";
  std::vector<std::int64_t> values = {-2147483648LL, 2147483647LL, 7};
  EXPECT_EQ(SafetensorsFile(dir.put("f", file_of(header, bytes_of(values)))).read("i").to_doubles(),
            (std::vector<double>{-2147483648.0, 2147483647.0, 7}));
  values[1] = 2147483648LL;
  const SafetensorsFile file(dir.put("f", file_of(header, bytes_of(values))));
  expect_contains(error_of<InputError>([&] { (void)file.read("i"); }), "tensor 'i' holds 2147483648 at element 1");
}

TEST(IoSafetensors, OtherDtypesFailOnlyWhenRead) {
  const TempDir dir;
  const SafetensorsFile file(dir.put("f", file_of(R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
    "q":{"dtype":"Q5","shape":[9],"data_offsets":[3,7]},"x":{"dtype":"F4","shape":[2],"data_offsets":[7,8]}})",
                                                  "12345678")));
  EXPECT_EQ(file.info("u").dtype, "U8");
  expect_contains(error_of<InputError>([&] { (void)file.read("u"); }), "tensor 'u' has dtype U8; F64, F32");
  expect_contains(error_of<InputError>([&] { (void)file.read("q"); }), "dtype Q5");
  expect_contains(error_of<InputError>([&] { (void)file.read("x"); }), "dtype F4");
  expect_contains(error_of<InputError>([&] { (void)file.read("absent"); }), "no tensor 'absent' among its 3");
  expect_contains(error_of<InputError>([&] { (void)file.info("absent"); }), "no tensor 'absent'");
}

TEST(IoSafetensors, BadHeadersAreInputErrors) {
  const TempDir dir;
  const auto message = [&](const std::string& header) {
    return error_of<InputError>([&] { const SafetensorsFile file(dir.put("f", file_of(header, std::string(16, 'x')))); });
  };
  expect_contains(message("{"), "claims a header of 1 bytes");
  expect_contains(message("{]"), "not valid JSON at byte 2");
  expect_contains(message(" {}"), "does not begin with '{'");
  expect_contains(
      message(
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
      "twice");
  expect_contains(message(R"({"__metadata__":{"a":1}})"), "__metadata__ 'a' must be a string");
  expect_contains(message(R"({"__metadata__":[]})"), "must be an object of strings");
  for (const char* entry : {R"(7)", R"({})", R"({"dtype":1,"shape":[],"data_offsets":[0,16]})",
                            R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})", R"({"dtype":"F32","shape":[4]})",
                            R"({"dtype":"F32","shape":[4],"data_offsets":[0,16,32]})"}) {
    expect_contains(message(header_with(entry)), "tensor 'a' must have a dtype");
  }
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})")), "integer of at least 0");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})")), "integer of at least 0");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})")), "integer of at least 0");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})")), "before its begin");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})")),
                  "tensor 'a' needs 12 bytes for its shape and dtype F32, its offsets give it 16");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})")), "overflows");
  expect_contains(message(header_with(R"({"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]})")),
                  "overflows");
  expect_contains(message(header_with(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})")), "whole number of bytes");
}

TEST(IoSafetensors, TensorsMustCoverTheDataExactly) {
  const TempDir dir;
  const auto message = [&](const std::string& a, const std::string& b, std::size_t bytes) {
    const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                               R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
    return error_of<InputError>([&] { const SafetensorsFile file(dir.put("f", file_of(header, std::string(bytes, 'x')))); });
  };
  expect_contains(message("[0,4]", "[2,6]", 6), "tensor 'b' begins at offset 2, inside tensor 'a', which ends at 4");
  expect_contains(message("[0,4]", "[0,4]", 4), "inside tensor");
  expect_contains(message("[6,10]", "[0,4]", 10), "tensor 'a' begins at offset 6, leaving a hole from 4");
  expect_contains(message("[1,5]", "[5,9]", 9), "leaving a hole from 0");
  expect_contains(message("[0,4]", "[4,8]", 9), "too long: its header asks for 121 bytes, the file has 122");
  expect_contains(message("[0,4]", "[4,8]", 7), "truncated: its header asks for 121 bytes, the file has 120");
  expect_contains(message("[0,4]", "[9223372036854775803,9223372036854775807]", 8), "hole");
}

TEST(IoSafetensors, EveryTruncationIsNoticed) {
  const TempDir dir;
  write_safetensors(dir.path("f"), some_tensors());
  const std::string whole = read_file(dir.path("f"));
  for (std::size_t n = 0; n < whole.size(); n += n < 16 ? 1 : 13) {
    dir.put("g", std::string_view(whole).substr(0, n));
    const std::string message = error_of<InputError>([&] { const SafetensorsFile file(dir.path("g")); });
    expect_contains(message, dir.path("g"));
    if (n >= 8) {
      expect_contains(message, "truncated");
      expect_contains(message, "the file has " + std::to_string(n));
    }
  }
  expect_contains(error_of<InputError>([&] { const SafetensorsFile file(dir.put("t", "hello, this is text")); }),
                  "not a safetensors file");
}

TEST(IoSafetensors, WriterChecksOrderAndSizes) {
  const TempDir dir;
  const HostTensor tensor = HostTensor::from_doubles({1, 2}, {2}, Dtype::kFp32);
  const HostTensor other = HostTensor::from_doubles({1, 2}, {2, 1}, Dtype::kFp32);
  {
    SafetensorsWriter writer(dir.path("f"), {{"a", {Dtype::kFp32, {2}}}, {"b", {Dtype::kFp64, {2}}}});
    EXPECT_EQ(writer.order(), (std::vector<std::string>{"b", "a"}));
    expect_contains(error_of<RunError>([&] { writer.write("a", tensor); }), "'a' is written out of order; the next is 'b'");
    writer.write("b", HostTensor::from_doubles({3, 4}, {2}, Dtype::kFp64));
    expect_contains(error_of<RunError>([&] { writer.write("a", other); }), "'a' differs");
    error_of<RunError>([&] { writer.commit(); });
    writer.write_bytes(std::span(tensor.data).first(3));
    writer.write_bytes(std::span(tensor.data).subspan(3));
    error_of<RunError>([&] { writer.write_bytes(tensor.data); });
    writer.commit();
  }
  EXPECT_EQ(SafetensorsFile(dir.path("f")).read("a").to_doubles(), (std::vector<double>{1, 2}));
  EXPECT_EQ(SafetensorsFile(dir.path("f")).read("b").to_doubles(), (std::vector<double>{3, 4}));
  error_of<InputError>([&] { write_safetensors(dir.path("g"), {{"__metadata__", tensor}}); });
  error_of<InputError>([&] { write_safetensors(dir.path("no/such"), {{"a", tensor}}); });
  EXPECT_EQ(dir.entries(), 1);
}

// Files that this suite did not write.
TEST(IoSafetensors, ReadsTheGoldenFiles) {
  int files = 0;
  for (const auto& item : std::filesystem::directory_iterator(kGolden)) {
    if (item.path().extension() != ".safetensors") continue;
    ++files;
    const SafetensorsFile file(item.path().string());
    const Json config = Json::parse(file.metadata().at("config"));
    EXPECT_EQ(config.at("name").as_string(), item.path().stem().string());
    const std::vector<std::int64_t> batch = {config.at("batch").as_int(), config.at("seq").as_int()};
    for (const char* name : {"tokens", "labels"}) EXPECT_EQ(file.info(name).shape, batch);
    for (const double token : file.read("tokens").to_doubles()) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, static_cast<double>(config.at("vocab").as_int()));
    }
    for (const std::string& name : file.names()) {
      const HostTensor tensor = file.read(name);
      ASSERT_EQ(tensor.shape, file.info(name).shape);
      for (const double value : tensor.to_doubles()) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
  EXPECT_GE(files, 8);
}

TEST(IoSafetensors, GoldenFileWrittenAgainIsTheSame) {
  const TempDir dir;
  const SafetensorsFile file(kGolden + "llama_packed.safetensors");
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors[name] = file.read(name);
  write_safetensors(dir.path("f"), tensors, file.metadata());
  const SafetensorsFile back(dir.path("f"));
  EXPECT_EQ(back.names(), file.names());
  EXPECT_EQ(back.metadata(), file.metadata());
  for (const auto& [name, tensor] : tensors) EXPECT_EQ(back.read(name).data, tensor.data);
}

}  // namespace
}  // namespace ref5d
