// The page of pitfalls lists exactly the ids that code, tests and lessons cite.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/io/file.h"

namespace ref5d::testing {
namespace {

namespace fs = std::filesystem;

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// P and two digits, or T and one or two, as a word or between underscores.
std::set<std::string> ids_in(const std::string& text) {
  std::set<std::string> ids;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] != 'P' && text[i] != 'T') || (i > 0 && is_alnum(text[i - 1]))) continue;
    std::size_t end = i + 1;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    const std::size_t digits = end - i - 1;
    if (end < text.size() && is_alnum(text[end])) continue;
    if (text[i] == 'P' ? digits == 2 : digits == 1 || digits == 2) ids.insert(text.substr(i, end - i));
  }
  return ids;
}

const fs::path kRoot = REF5D_SOURCE_DIR, kPage = kRoot / "common/docs/pitfalls.md";

// Ids and a file that cites each.
std::map<std::string, std::string> cited() {
  std::map<std::string, std::string> cited;
  for (const auto& top : fs::directory_iterator(kRoot)) {
    const std::string name = top.path().filename();
    if (name != "common" && name != "tests" && !name.starts_with("0")) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".md") continue;
      if (entry.path() == kPage) continue;
      for (const std::string& id : ids_in(read_file(entry.path()))) cited.emplace(id, entry.path().lexically_relative(kRoot));
    }
  }
  return cited;
}

TEST(PitfallsPage, ListsExactlyTheIdsThatAreCited) {
  std::set<std::string> listed;
  const std::string page = read_file(kPage);
  for (std::size_t at = page.find("\n| "); at != std::string::npos; at = page.find("\n| ", at + 1)) {
    for (const std::string& id : ids_in(page.substr(at + 3, page.find('|', at + 3) - at - 3)))
      EXPECT_TRUE(listed.insert(id).second) << id << " has two rows";
  }
  const std::map<std::string, std::string> all = cited();
  EXPECT_GE(all.size(), 16u);
  for (const auto& [id, file] : all) EXPECT_TRUE(listed.contains(id)) << file << " cites " << id << ", which the page lacks";
  for (const std::string& id : listed) EXPECT_TRUE(all.contains(id)) << "the page lists " << id << ", which nothing cites";
}

// A test that the page names has to exist.
TEST(PitfallsPage, NamesTestsThatExist) {
  std::string tests;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() == ".cpp") tests += read_file(entry.path());
  }
  const std::string page = read_file(kPage);
  int names = 0;
  for (std::size_t at = page.find('`'); at != std::string::npos; ++names) {
    const std::size_t end = page.find('`', at + 1);
    const std::string name = page.substr(at + 1, end - at - 1);
    at = page.find('`', end + 1);
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos || name.find('/') != std::string::npos) continue;
    EXPECT_NE(tests.find("(" + name.substr(0, dot) + ", " + name.substr(dot + 1) + ")"), std::string::npos) << name;
  }
  EXPECT_GE(names, 16);
}

}  // namespace
}  // namespace ref5d::testing
