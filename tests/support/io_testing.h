// What the tests of files share: a folder of their own, and the text of the error that something throws.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace ref5d::testing {

// A folder that is removed with everything in it.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "ref5d_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  [[nodiscard]] std::string path(const std::string& name = "") const { return name.empty() ? root_ : root_ + "/" + name; }
  // Writes a file without the code under test, and returns its path.
  std::string put(const std::string& name, std::string_view content) const {
    std::filesystem::remove(path(name));  // some file systems write a truncated file through, which costs milliseconds
    std::ofstream(path(name), std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path(name);
  }
  [[nodiscard]] int entries() const {
    int n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(root_)) ++n;
    return n;
  }

 private:
  std::string root_;
};

// The message of the E that `run` throws, which must be one line. Fails the test if it throws nothing or something else.
template <typename E, typename Run>
std::string error_of(Run&& run) {
  try {
    run();
  } catch (const E& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

// The bytes of plain values, as a file holds them.
template <typename T>
std::string bytes_of(const T& values) {
  const auto raw = std::as_bytes(std::span(values));
  std::string out(raw.size(), '\0');
  if (!raw.empty()) std::memcpy(out.data(), raw.data(), raw.size());
  return out;
}

}  // namespace ref5d::testing
