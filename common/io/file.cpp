#include "common/io/file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;
constexpr std::size_t kMaxCallBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB - 4 KiB per call

std::string reason(int error) { return std::generic_category().message(error); }

// Throws for a failed open: the user's mistake where the path is wrong, the machine's otherwise.
[[noreturn]] void open_failed(const char* verb, const std::string& path, int error) {
  const char* remedy = nullptr;
  switch (error) {
    case ENOENT: remedy = "check the path and that its folder exists"; break;
    case ENOTDIR: remedy = "a part of the path is a file, not a folder"; break;
    case EACCES:
    case EPERM:
    case EROFS: remedy = "change its permissions or choose another path"; break;
    case EISDIR: remedy = "give the name of a file"; break;
    case ELOOP:
    case EINVAL:
    case ENAMETOOLONG: remedy = "choose another path"; break;
    default: throw RunError(fmt::format("cannot {} {}: {}", verb, path, reason(error)));
  }
  throw InputError(fmt::format("cannot {} {}: {}; {}", verb, path, reason(error), remedy));
}

FileDescriptor open_for_reading(const std::string& path, struct stat& status) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe without a writer must not hang us
  if (fd.get() < 0) open_failed("open", path, errno);
  if (::fstat(fd.get(), &status) != 0) open_failed("open", path, errno);
  if (S_ISDIR(status.st_mode)) open_failed("open", path, EISDIR);
  return fd;
}

const char* write_remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space or choose another folder";
    case EFBIG: return "raise the limit on file sizes (ulimit -f) or choose another file system";
    default: return "check the disk or choose another folder";
  }
}

// Names through which a process reaches its own open files: reopening and renaming them makes no sense.
bool is_own_stream(const std::string& path) {
  return path.starts_with("/dev/std") || path.starts_with("/dev/fd/") || path.starts_with("/proc/");
}

// A rename is durable only when its folder is. Not every file system can sync a folder, and the content is safe already,
// so failures are ignored.
void sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  FileDescriptor fd(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) (void)::fsync(fd.get());
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  struct stat status {};
  fd_ = open_for_reading(path_, status);
  if (!S_ISREG(status.st_mode))
    throw InputError(fmt::format("cannot read {}: it is a device or a pipe; give a regular file", path_));
  size_ = status.st_size;
}

void InputFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_.get(), out.data(), std::min(out.size(), kMaxCallBytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw RunError(fmt::format("cannot read {}: {}", path_, reason(errno)));
    if (n == 0) throw InputError(fmt::format("{} is truncated: {} bytes are needed, it has {}", path_, end, offset));
    out = out.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

std::string read_file(const std::string& path) {
  struct stat status {};
  const FileDescriptor fd = open_for_reading(path, status);
  std::string content;
  content.resize(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)));
  std::size_t used = 0;
  while (true) {
    if (used == content.size()) content.resize(used + kBufferBytes);  // a pipe, a file of /proc, or one more look for the end
    const ssize_t n = ::read(fd.get(), content.data() + used, std::min(content.size() - used, kMaxCallBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw RunError(fmt::format("cannot read {}: {}", path, reason(errno)));
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
  }
  content.resize(used);
  return content;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(path_) {
  if (path_.empty()) throw InputError("cannot write a file without a name; give a path");
  struct stat status {};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) open_failed("write", path_, EISDIR);
  if (exists && (!S_ISREG(status.st_mode) || is_own_stream(path_))) {
    fd_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (fd_.get() < 0) open_failed("write", path_, errno);
    return;
  }
  if (exists) {  // replace the file that a symbolic link points to, not the link
    std::error_code ignored;
    const auto resolved = std::filesystem::canonical(path_, ignored);
    if (!ignored) target_ = resolved.string();
  }
  open_temporary();
  if (exists) (void)::fchmod(fd_.get(), status.st_mode & 07777);  // the replacement keeps the permissions where it may
}

void AtomicFile::open_temporary() {
  const std::string stem = fmt::format("{}.partial.{}", target_, ::getpid());
  // The number tells apart two writers of one name in one process, and what a crashed process of the same id left.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary_ = attempt == 0 ? stem : fmt::format("{}.{}", stem, attempt);
    fd_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_.get() >= 0) return;
    if (errno == EEXIST) continue;
    const int error = errno;
    temporary_.clear();
    if (error == ENOSPC || error == EDQUOT) fail(error);
    open_failed("write", path_, error);
  }
  temporary_.clear();
  throw RunError(fmt::format("cannot write {}: a thousand {}* exist; remove them", path_, stem));
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  fd_ = FileDescriptor(-1);
  if (temporary_.empty()) return;
  (void)::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail(int error) {
  discard();
  throw RunError(fmt::format("cannot write {}: {}; {}", path_, reason(error), write_remedy(error)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_.get() < 0) throw RunError(fmt::format("cannot write {}: it was closed before", path_));
  bytes_written_ += static_cast<std::int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kMaxCallBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::commit() {
  if (fd_.get() < 0) throw RunError(fmt::format("cannot write {}: it was closed before", path_));
  flush();
  const bool cannot_sync = ::fsync(fd_.get()) != 0;
  // Devices and pipes have nothing to sync and say so; for a file every failure counts.
  if (cannot_sync && !(temporary_.empty() && (errno == EINVAL || errno == ENOTSUP || errno == EROFS))) fail(errno);
  if (::close(fd_.release()) != 0 && errno != EINTR) fail(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  sync_folder_of(target_);
}

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace ref5d
