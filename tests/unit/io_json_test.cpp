#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "common/device/error.h"
#include "common/io/json.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::error_of;
using testing::expect_contains;

TEST(IoJson, ParsesEveryKind) {
  const Json json =
      Json::parse(R"( {"n":null,"t":true,"i":-9223372036854775808,"d":1.5,"s":"a\u00e9\n","a":[1,[],{}],"o":{"x":{}}} )");
  EXPECT_TRUE(json.at("n").is_null());
  EXPECT_TRUE(json.at("t").as_bool());
  EXPECT_EQ(json.at("i").as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json.at("d").as_double(), 1.5);
  EXPECT_EQ(json.at("s").as_string(), "a\xc3\xa9\n");
  EXPECT_EQ(json.at("a").size(), 3u);
  EXPECT_EQ(json.at("a").at(std::size_t{0}).as_int(), 1);
  EXPECT_TRUE(json.at("o").at("x").is_object());
  EXPECT_EQ(json.find("absent"), nullptr);
}

TEST(IoJson, KeepsTheOrderOfKeys) {
  const std::string text = R"({"z":1,"a":2,"m":{"b":3,"a":4}})";
  EXPECT_EQ(Json::parse(text).dump(), text);
}

TEST(IoJson, DoublesRoundTripExactly) {
  std::mt19937_64 random(1);
  std::vector<double> values = {
      0.0, -0.0, 0.1, 1.0, -3.0, 1e300, 5e-324, std::numeric_limits<double>::max(), std::numeric_limits<double>::min(), 1e22};
  while (values.size() < 2000) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  const Json back = Json::parse(Json::array_of(values).dump());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Json& item = back.at(i);
    ASSERT_EQ(item.kind(), Json::Kind::kDouble) << values[i];
    ASSERT_EQ(std::bit_cast<std::uint64_t>(item.as_double()), std::bit_cast<std::uint64_t>(values[i])) << values[i];
  }
}

TEST(IoJson, NonFiniteDoublesAreStrings) {
  const double inf = std::numeric_limits<double>::infinity();
  const Json json = Json::array_of(std::vector<double>{std::nan(""), inf, -inf});
  EXPECT_EQ(json.dump(), R"(["nan","inf","-inf"])");
  const Json back = Json::parse(json.dump());
  EXPECT_TRUE(std::isnan(back.at(std::size_t{0}).as_double()));
  EXPECT_EQ(back.at(std::size_t{1}).as_double(), inf);
  EXPECT_EQ(back.at(std::size_t{2}).as_double(), -inf);
}

TEST(IoJson, IntegersBeyondInt64BecomeDoubles) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Json::parse("9223372036854775808").kind(), Json::Kind::kDouble);
  EXPECT_EQ(Json(std::numeric_limits<std::uint64_t>::max()).as_double(), 0x1p64);
}

TEST(IoJson, StringsRoundTrip) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  EXPECT_EQ(Json::parse(Json(all).dump()).as_string(), all);
  EXPECT_EQ(Json::parse(Json("\xff").dump()).as_string(), "\xef\xbf\xbd");  // not UTF-8
}

TEST(IoJson, IndentedTextReadsBackTheSame) {
  Json json = Json::object({{"loss", Json::array({1.5, 2.5})}, {"empty", Json::array()}, {"none", Json::object()}});
  json["checks"].push_back(Json::object({{"name", "a"}, {"pass", true}}));
  json["deep"]["er"]["x"] = std::string(200, 'y');
  const std::string text = json.dump(2);
  EXPECT_EQ(Json::parse(text), json);
  expect_contains(text, "\n  \"loss\": [1.5, 2.5],\n");
  expect_contains(text, "\n    {\"name\": \"a\", \"pass\": true}\n  ]");
  EXPECT_EQ(json.dump().find('\n'), std::string::npos);
}

TEST(IoJson, BracketsAddAndReplace) {
  Json json;
  json["a"] = 1;
  json["b"] = 2;
  json["a"] = "x";
  EXPECT_EQ(json.dump(), R"({"a":"x","b":2})");
}

TEST(IoJson, BadTextNamesThePosition) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "[1] x", "\"\n\"", "01", "{\"a\":1,}", "\"\\x\"", "1e999", "\xff"}) {
    const std::string message = error_of<InputError>([&] { (void)Json::parse(text, "FILE"); });
    expect_contains(message, "FILE");
    expect_contains(message, "at byte");
  }
  expect_contains(error_of<InputError>([] { (void)Json::parse("[1, 2 3]", "FILE"); }), "byte 7");
}

TEST(IoJson, RefusesTwiceTheSameKeyAndDeepNesting) {
  expect_contains(error_of<InputError>([] { (void)Json::parse(R"({"a":1,"b":{"a":1},"a":2})"); }), "\"a\" occurs twice");
  EXPECT_NO_THROW((void)Json::parse(std::string(200, '[') + std::string(200, ']')));
  expect_contains(error_of<InputError>([] { (void)Json::parse(std::string(100000, '[')); }), "deep");
}

TEST(IoJson, AccessorsOfTheWrongKindThrow) {
  const Json json = Json::parse(R"({"s":"x","i":1,"a":[1]})");
  expect_contains(error_of<InputError>([&] { (void)json.at("s").as_int(); }), "an integer is needed, a string was found");
  expect_contains(error_of<InputError>([&] { (void)json.at("s").as_double(); }), "a number");
  expect_contains(error_of<InputError>([&] { (void)json.at("i").as_bool(); }), "a boolean");
  expect_contains(error_of<InputError>([&] { (void)json.at("i").as_string(); }), "a string");
  expect_contains(error_of<InputError>([&] { (void)json.at("i").items(); }), "an array");
  expect_contains(error_of<InputError>([&] { (void)json.at("i").members(); }), "an object");
  expect_contains(error_of<InputError>([&] { (void)json.at("absent"); }), "\"absent\" is missing");
  expect_contains(error_of<InputError>([&] { (void)json.at("a").at(std::size_t{1}); }), "element 1");
}

TEST(IoJson, ANulIsNoEnd) {
  EXPECT_THROW((void)Json::parse(std::string_view("{}\0x", 4)), InputError);
  EXPECT_THROW((void)Json::parse(std::string_view("2\0", 2)), InputError);
}

}  // namespace
}  // namespace ref5d
