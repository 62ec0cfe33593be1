// JSON values: what safetensors headers, metadata and reports are made of.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ref5d {

// A JSON value. Objects keep the order in which their keys were added. Accessors of the wrong kind throw InputError.
class Json {
 public:
  enum class Kind { kNull, kBool, kInt, kDouble, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json() = default;
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T value) : value_(value) {}
  // A value beyond int64 becomes a double.
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value) {
    if (std::in_range<std::int64_t>(value)) {
      value_ = static_cast<std::int64_t>(value);
    } else {
      value_ = static_cast<double>(value);
    }
  }
  template <std::floating_point T>
  Json(T value) : value_(static_cast<double>(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}

  [[nodiscard]] static Json array(std::initializer_list<Json> items = {});
  [[nodiscard]] static Json object(std::initializer_list<Member> members = {});
  template <typename T>
  [[nodiscard]] static Json array_of(const std::vector<T>& values) {
    Json out = array();
    for (const auto& value : values) out.push_back(Json(value));
    return out;
  }

  // Reads one JSON text; `what` names it in errors. Throws InputError with the position for bad syntax, bytes after the
  // value, a key that occurs twice in one object, and nesting deeper than 200. Integers beyond int64 are read as doubles.
  [[nodiscard]] static Json parse(std::string_view text, std::string_view what = "the JSON text");

  // indent < 0: on one line without spaces. Otherwise nested by `indent` spaces, with arrays and short objects of plain
  // values on one line. Doubles are written so that they read back to the same bits; NaN and the infinities, for which
  // JSON has no number, as the strings "nan", "inf" and "-inf". Bytes that are not UTF-8 become U+FFFD.
  [[nodiscard]] std::string dump(int indent = -1) const;

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(value_.index()); }
  [[nodiscard]] bool is_null() const { return kind() == Kind::kNull; }
  [[nodiscard]] bool is_bool() const { return kind() == Kind::kBool; }
  [[nodiscard]] bool is_int() const { return kind() == Kind::kInt; }
  [[nodiscard]] bool is_number() const { return kind() == Kind::kInt || kind() == Kind::kDouble; }
  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }
  [[nodiscard]] bool is_array() const { return kind() == Kind::kArray; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }

  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;
  [[nodiscard]] double as_double() const;  // also an integer, and the strings "nan", "inf" and "-inf"
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& items() const&;     // of an array
  [[nodiscard]] const Object& members() const&;  // of an object
  // By value for temporaries, so that a loop over Json::parse(text).members() does not dangle.
  [[nodiscard]] Array items() && { return std::as_const(*this).items(); }
  [[nodiscard]] Object members() && { return std::as_const(*this).members(); }
  [[nodiscard]] std::size_t size() const;  // of an array or an object; 0 for null

  // Members are found by a linear search; for large objects loop over members() instead.
  [[nodiscard]] const Json* find(std::string_view key) const;  // nullptr if absent or not an object
  [[nodiscard]] bool contains(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] const Json& at(std::string_view key) const;  // InputError if absent
  [[nodiscard]] const Json& at(std::size_t index) const;     // InputError if beyond the end

  // The member `key`, added as null if absent; a null value becomes an object first.
  Json& operator[](std::string_view key);
  // Appends to an array and returns the new element; a null value becomes an array first.
  Json& push_back(Json value);
  // Appends a member without looking whether its key exists already: for building large objects.
  Json& append_member(std::string key, Json value);

  friend bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

 private:
  // In the order of Kind.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace ref5d
