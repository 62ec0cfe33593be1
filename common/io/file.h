// Files: reading with clear errors, and writing so that a crash or a full disk leaves no half-written file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ref5d {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A regular file opened for reading at any offset. Throws InputError if it is missing, a folder, not a regular file, or
// not readable.
class InputFile {
 public:
  explicit InputFile(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t size() const { return size_; }  // bytes, when it was opened
  // Fills `out` with the bytes from `offset` on. Throws InputError if the file ends before, RunError if reading fails.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  std::int64_t size_ = 0;
};

// The whole content of a file (or pipe). Same errors as InputFile.
[[nodiscard]] std::string read_file(const std::string& path);

// A file that appears under its name only when it is complete: it is written to PATH.partial.PID in the same folder and
// renamed by commit(); without commit(), or after an error, the temporary file is removed and what PATH held before stays.
// Every write, flush, fsync and close is checked; a failure (a full disk, a size limit) is a RunError that names PATH. A
// path that cannot be created (no such folder, no permission, a folder's name) is an InputError. Devices and pipes
// (/dev/stdout, …) are written to directly.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  [[nodiscard]] std::int64_t bytes_written() const { return bytes_written_; }  // buffered ones included
  // Makes the file durable and visible. Nothing may be written afterwards.
  void commit();

 private:
  void open_temporary();
  void write_through(std::span<const std::byte> bytes);
  void flush();
  void discard() noexcept;
  [[noreturn]] void fail(int error);

  std::string path_;       // as the user wrote it, for messages
  std::string target_;     // path_ with symbolic links followed
  std::string temporary_;  // empty where the target is written directly
  FileDescriptor fd_;
  std::vector<std::byte> buffer_;
  std::int64_t bytes_written_ = 0;
};

// Writes `content` to `path` through an AtomicFile.
void write_file(const std::string& path, std::string_view content);

}  // namespace ref5d
