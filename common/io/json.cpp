#include "common/io/json.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr std::size_t kMaxDepth = 200;     // keeps the recursion of dump and of the destructor bounded
constexpr std::size_t kShortObject = 110;  // columns of an object that stays on one line

const char* kind_name(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull: return "null";
    case Json::Kind::kBool: return "a boolean";
    case Json::Kind::kInt: return "an integer";
    case Json::Kind::kDouble: return "a number";
    case Json::Kind::kString: return "a string";
    case Json::Kind::kArray: return "an array";
    case Json::Kind::kObject: return "an object";
  }
  return "?";
}

[[noreturn]] void wrong_kind(const char* wanted, Json::Kind found) {
  throw InputError(fmt::format("JSON value: {} is needed, {} was found", wanted, kind_name(found)));
}

// Builds a Json from the parser's events, without a second tree in between.
class Builder {
 public:
  explicit Builder(std::string_view what) : what_(what) {}

  Json take() { return std::move(root_); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(std::int64_t value) { return add(Json(value)); }
  bool number_unsigned(std::uint64_t value) { return add(Json(value)); }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // not in JSON text

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) {
      throw InputError(fmt::format("{}: the key \"{}\" occurs twice in one object; keys must differ", what_, name));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string reason = error.what();
    if (reason.starts_with('[')) reason.erase(0, reason.find("] ") + 2);  // the library's own error number
    for (char& c : reason) {
      if (c == '\n' || c == '\r') c = ' ';
    }
    throw InputError(fmt::format("{} is not valid JSON at byte {}: {}", what_, position, reason));
  }

 private:
  struct Open {
    Json* value;  // stays valid: its parent does not grow before it is closed
    std::unordered_set<std::string> keys;
  };

  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back().value;
    return parent.is_object() ? &parent.append_member(std::move(key_), std::move(value)) : &parent.push_back(std::move(value));
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxDepth) {
      throw InputError(fmt::format("{} nests arrays and objects more than {} deep; that is not read", what_, kMaxDepth));
    }
    open_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  Json root_;
  std::vector<Open> open_;
  std::string key_;
};

std::string scalar_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* non_finite_name(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

bool is_container(const Json& value) { return value.is_array() || value.is_object(); }

// Whether a container holds plain values only.
bool is_flat(const Json& value) {
  if (value.is_array()) {
    for (const Json& item : value.items()) {
      if (is_container(item)) return false;
    }
    return true;
  }
  for (const auto& [key, member] : value.members()) {
    if (is_container(member)) return false;
  }
  return true;
}

class Writer {
 public:
  explicit Writer(int indent) : indent_(indent) {}

  std::string take() { return std::move(out_); }

  void write(const Json& value, int depth) {
    switch (value.kind()) {
      case Json::Kind::kNull: out_ += "null"; return;
      case Json::Kind::kBool: out_ += value.as_bool() ? "true" : "false"; return;
      case Json::Kind::kInt: out_ += scalar_text(value.as_int()); return;
      case Json::Kind::kDouble: write_double(value.as_double()); return;
      case Json::Kind::kString: out_ += scalar_text(value.as_string()); return;
      case Json::Kind::kArray:
      case Json::Kind::kObject: write_container(value, depth); return;
    }
  }

 private:
  void write_double(double value) {
    if (std::isfinite(value)) {
      out_ += scalar_text(value);
    } else {
      out_ += fmt::format("\"{}\"", non_finite_name(value));
    }
  }

  void write_container(const Json& value, int depth) {
    if (indent_ >= 0 && depth > 0 && is_flat(value)) {
      std::string line = one_line(value);
      if (value.is_array() || line.size() <= kShortObject) {
        out_ += line;
        return;
      }
    }
    out_ += value.is_array() ? '[' : '{';
    bool first = true;
    const auto separate = [&] {
      if (!first) out_ += inline_ ? ", " : ",";
      first = false;
      new_line(depth + 1);
    };
    if (value.is_array()) {
      for (const Json& item : value.items()) {
        separate();
        write(item, depth + 1);
      }
    } else {
      for (const auto& [key, member] : value.members()) {
        separate();
        out_ += scalar_text(key);
        out_ += indent_ >= 0 || inline_ ? ": " : ":";
        write(member, depth + 1);
      }
    }
    if (value.size() > 0) new_line(depth);
    out_ += value.is_array() ? ']' : '}';
  }

  static std::string one_line(const Json& value) {
    Writer writer(-1);
    writer.inline_ = true;
    writer.write(value, 0);
    return writer.take();
  }

  void new_line(int depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(depth) * static_cast<std::size_t>(indent_), ' ');
  }

  int indent_;
  bool inline_ = false;  // one line within an indented text: a space after commas and colons
  std::string out_;
};

}  // namespace

Json Json::array(std::initializer_list<Json> items) {
  Json out;
  out.value_ = Array(items);
  return out;
}

Json Json::object(std::initializer_list<Member> members) {
  Json out;
  out.value_ = Object(members);
  return out;
}

Json Json::parse(std::string_view text, std::string_view what) {
  // To the parser a NUL is the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw InputError(fmt::format("{} is not valid JSON: a NUL at position {}", what, nul));
  Builder builder(what);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    throw InputError(fmt::format("{} is not valid JSON", what));
  return builder.take();
}

std::string Json::dump(int indent) const {
  Writer writer(indent);
  writer.write(*this, 0);
  return writer.take();
}

bool Json::as_bool() const {
  if (const auto* value = std::get_if<bool>(&value_)) return *value;
  wrong_kind("a boolean", kind());
}

std::int64_t Json::as_int() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return *value;
  wrong_kind("an integer", kind());
}

double Json::as_double() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::string>(&value_)) {
    if (*value == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (*value == "inf") return std::numeric_limits<double>::infinity();
    if (*value == "-inf") return -std::numeric_limits<double>::infinity();
  }
  wrong_kind("a number", kind());
}

const std::string& Json::as_string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  wrong_kind("a string", kind());
}

const Json::Array& Json::items() const& {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  wrong_kind("an array", kind());
}

const Json::Object& Json::members() const& {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  wrong_kind("an object", kind());
}

std::size_t Json::size() const {
  if (is_null()) return 0;
  return is_array() ? items().size() : members().size();
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : members()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) wrong_kind("an object", kind());
  if (const Json* value = find(key)) return *value;
  throw InputError(fmt::format("JSON object: the key \"{}\" is missing", key));
}

const Json& Json::at(std::size_t index) const {
  if (index < items().size()) return items()[index];
  throw InputError(fmt::format("JSON array: element {} is asked for, it has {}", index, size()));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (!is_object()) wrong_kind("an object", kind());
  for (auto& [name, value] : std::get<Object>(value_)) {
    if (name == key) return value;
  }
  return append_member(std::string(key), Json());
}

Json& Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  if (!is_array()) wrong_kind("an array", kind());
  return std::get<Array>(value_).emplace_back(std::move(value));
}

Json& Json::append_member(std::string key, Json value) {
  if (is_null()) value_ = Object();
  if (!is_object()) wrong_kind("an object", kind());
  return std::get<Object>(value_).emplace_back(std::move(key), std::move(value)).second;
}

}  // namespace ref5d
