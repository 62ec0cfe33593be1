#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "common/device/error.h"
#include "common/io/file.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempDir;

// Limits the size of files that this process may write, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

TEST(IoFile, ReadsWhatWasWritten) {
  const TempDir dir;
  for (const std::size_t size : {0u, 1u, 4095u, 262144u, 262145u, 1000003u}) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 31 + i / 256);
    write_file(dir.path("f"), content);
    EXPECT_EQ(read_file(dir.path("f")), content);
    EXPECT_EQ(InputFile(dir.path("f")).size(), static_cast<std::int64_t>(size));
  }
  EXPECT_EQ(dir.entries(), 1);  // no temporary is left
}

TEST(IoFile, ReadsAtOffsets) {
  const TempDir dir;
  const InputFile file(dir.put("f", "0123456789"));
  std::string part(4, ' ');
  file.read_at(3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "3456");
  const std::string message = error_of<InputError>([&] { file.read_at(8, std::as_writable_bytes(std::span(part))); });
  expect_contains(message, "truncated: 12 bytes are needed, it has 10");
}

TEST(IoFile, WhatCannotBeReadIsSaid) {
  const TempDir dir;
  dir.put("f", "x");
  expect_contains(error_of<InputError>([&] { (void)read_file(dir.path("absent")); }), dir.path("absent") + ": No such file");
  expect_contains(error_of<InputError>([&] { (void)read_file(dir.path()); }), "Is a directory");
  expect_contains(error_of<InputError>([&] { (void)read_file(dir.path("f/child")); }), "Not a directory");
  expect_contains(error_of<InputError>([&] { const InputFile file(dir.path()); }), "Is a directory");
  expect_contains(error_of<InputError>([&] { const InputFile file("/dev/null"); }), "regular file");
  fs::create_symlink("loop", dir.path("loop"));
  expect_contains(error_of<InputError>([&] { (void)read_file(dir.path("loop")); }), "symbolic links");
}

TEST(IoFile, UnreadableFileIsSaid) {
  if (::geteuid() == 0) GTEST_SKIP() << "the superuser may read everything";
  const TempDir dir;
  ::chmod(dir.put("f", "x").c_str(), 0);
  expect_contains(error_of<InputError>([&] { (void)read_file(dir.path("f")); }), "Permission denied");
}

TEST(IoFile, AppearsOnlyOnCommit) {
  const TempDir dir;
  dir.put("f", "old");
  {
    AtomicFile file(dir.path("f"));
    file.write("new and longer");
    EXPECT_EQ(file.bytes_written(), 14);
    EXPECT_TRUE(fs::exists(dir.path("f.partial." + std::to_string(::getpid()))));
    EXPECT_EQ(read_file(dir.path("f")), "old");
    file.commit();
    EXPECT_EQ(read_file(dir.path("f")), "new and longer");
    error_of<RunError>([&] { file.write("more"); });
    error_of<RunError>([&] { file.commit(); });
  }
  EXPECT_EQ(read_file(dir.path("f")), "new and longer");
  EXPECT_EQ(dir.entries(), 1);
}

TEST(IoFile, WithoutCommitNothingChanges) {
  const TempDir dir;
  dir.put("f", "old");
  for (const char* name : {"f", "g"}) {
    AtomicFile file(dir.path(name));
    file.write(std::string(1000000, 'x'));
  }
  EXPECT_EQ(dir.entries(), 1);
  EXPECT_EQ(read_file(dir.path("f")), "old");
}

TEST(IoFile, TwoWritersOfOneNameDoNotMix) {
  const TempDir dir;
  AtomicFile a(dir.path("f"));
  AtomicFile b(dir.path("f"));
  a.write("aaaa");
  b.write("bb");
  a.commit();
  EXPECT_EQ(read_file(dir.path("f")), "aaaa");
  b.commit();
  EXPECT_EQ(read_file(dir.path("f")), "bb");
  EXPECT_EQ(dir.entries(), 1);
}

TEST(IoFile, KeepsSymbolicLinksAndPermissions) {
  const TempDir dir;
  ::chmod(dir.put("real", "old").c_str(), 0640);
  fs::create_symlink("real", dir.path("link"));
  write_file(dir.path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(dir.path("link")));
  EXPECT_EQ(read_file(dir.path("real")), "new");
  EXPECT_EQ(fs::status(dir.path("real")).permissions(), fs::perms(0640));
}

TEST(IoFile, PathsThatCannotBeWrittenAreInputErrors) {
  const TempDir dir;
  dir.put("f", "x");
  expect_contains(error_of<InputError>([&] { AtomicFile file(dir.path("no/such")); }),
                  "cannot write " + dir.path("no/such") + ": No such file");
  expect_contains(error_of<InputError>([&] { AtomicFile file(dir.path()); }), "Is a directory");
  expect_contains(error_of<InputError>([&] { AtomicFile file(dir.path("f/g")); }), "Not a directory");
  expect_contains(error_of<InputError>([&] { AtomicFile file(dir.path(std::string(300, 'n'))); }), "too long");
  expect_contains(error_of<InputError>([&] { AtomicFile file(""); }), "without a name");
}

TEST(IoFile, FullDeviceIsARunError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  for (const std::size_t size : {1u, 1000000u}) {  // fails at commit, fails at write
    const std::string message = error_of<RunError>([&] { write_file("/dev/full", std::string(size, 'x')); });
    expect_contains(message, "cannot write /dev/full: No space left on device; ");
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(IoFile, FailureInTheMiddleLeavesNothing) {
  const TempDir dir;
  dir.put("f", "old");
  // 100 bytes fail when the buffer is flushed by commit(), 3 MB in write().
  for (const auto& [limit, size] : {std::pair<rlim_t, std::size_t>{10, 100}, {1 << 20, 3000000}}) {
    std::optional<std::string> message;
    {
      const FileSizeLimit limited(limit);
      try {
        write_file(dir.path("f"), std::string(size, 'x'));
      } catch (const RunError& error) {
        message = error.what();
      }
    }
    ASSERT_TRUE(message.has_value());
    expect_contains(*message, "cannot write " + dir.path("f") + ": File too large; ");
    EXPECT_EQ(read_file(dir.path("f")), "old");
    EXPECT_EQ(dir.entries(), 1);
  }
}

TEST(IoFile, DevicesAndPipesAreWrittenDirectly) {
  write_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  write_file("/dev/fd/" + std::to_string(ends[1]), "through a pipe");
  ::close(ends[1]);
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "through a pipe");
  ::close(ends[0]);
}

}  // namespace
}  // namespace ref5d
