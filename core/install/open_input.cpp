#include "core/install/open_input.hpp"

#include "core/formats/mds.hpp"
#include "core/install/program.hpp"
#include "megahost/error.hpp"
#include "megahost/storage.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

extern char** environ;

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr int kMissingColumn = 3; ///< exit status of megahost-columns (columns.hpp)

/// Both ends of a pipe; what is left open is closed.
struct PipeEnds {
  PipeEnds() {
    std::array<int, 2> made{};
    if (::pipe2(made.data(), O_CLOEXEC) != 0) {
      throw StorageError("create", "a pipe", errno);
    }
    out = made[0];
    in = made[1];
  }

  PipeEnds(const PipeEnds&) = delete;
  PipeEnds& operator=(const PipeEnds&) = delete;

  ~PipeEnds() {
    close_in();
    ::close(out);
  }

  void close_in() {
    if (in >= 0) {
      ::close(std::exchange(in, -1));
    }
  }

  int out = -1, in = -1;
};

size_t read_pipe(const PipeEnds& pipe, std::span<char> ret_buffer, const std::string& path) {
  size_t got = 0;
  while (got < ret_buffer.size()) {
    const ssize_t count = ::read(pipe.out, ret_buffer.data() + got, ret_buffer.size() - got);
    if (count < 0 && errno != EINTR) {
      throw StorageError("read", path, errno);
    }
    if (count == 0) {
      break;
    }
    got += count > 0 ? static_cast<size_t>(count) : 0;
  }
  return got;
}

/// The standard output of a program that reads a file.
class ProgramInput final : public InputStream {
public:
  /// words:  the program, and what it is given
  ProgramInput(std::vector<std::string> words, std::string path)
      : path_(std::move(path)) {
    if (::access(path_.c_str(), R_OK) != 0) {
      throw StorageError("open", path_, errno);
    }
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, bytes_.in, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, said_.in, STDERR_FILENO);
    const int failure =
        posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    bytes_.close_in();
    said_.close_in();
    if (failure != 0) {
      pid_ = -1;
      throw StorageError("start", words[0], failure);
    }
  }

  ~ProgramInput() override {
    if (pid_ > 0) { // the rest is not read
      ::kill(pid_, SIGKILL);
      (void)wait();
    }
  }

  size_t read(std::span<char> ret_buffer) override {
    const size_t got = read_pipe(bytes_, ret_buffer, path_);
    if (got == 0 && pid_ > 0) { // what came before a damage is good
      std::string text(1 << 12, '\0');
      text.resize(read_pipe(said_, text, path_));
      if (const int status = wait(); status != 0) {
        const bool is_whole = WIFEXITED(status) && WEXITSTATUS(status) == kMissingColumn;
        throw Error(
            path_ +
                " cannot be read: " + (text.empty() ? "the program that reads it was ended" : text),
            is_whole ? "name columns that it has by --json-key"
                     : "get the file anew, or go on without its rest with --on-error skip",
            exit_code::data
        );
      }
    }
    return got;
  }

private:
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

  std::string path_;
  PipeEnds bytes_, said_;
  pid_t pid_ = -1;
};

/// The program that reads parquet and Arrow files, which needs libarrow.
fs::path column_reader(const std::string& path) {
  const char* given = std::getenv("MEGAHOST_COLUMNS");
  const fs::path program = given != nullptr ? fs::path(given) : helper_program("megahost-columns");
  if (!fs::exists(program)) {
    throw Error(
        path + " holds columns, and " + program.string() + ", which reads them, is not there",
        "in the clone of megahost: ./megahost arrow fetches libarrow (55 MB) and builds it",
        exit_code::other // the file is not at fault: no --on-error skips it
    );
  }
  return program;
}

/// A shard of MDS as JSON lines.
class MdsInput final : public InputStream {
public:
  MdsInput(const std::string& path, InputStream& file) {
    std::string shard;
    for (size_t got = 1; got > 0;) {
      const size_t before = shard.size();
      shard.resize(before + (1 << 20));
      got = file.read(std::span(shard).subspan(before));
      shard.resize(before + got);
    }
    lines_ = mds_json_lines(std::as_bytes(std::span(shard)), path);
  }

  size_t read(std::span<char> ret_buffer) override {
    const size_t got = lines_.copy(ret_buffer.data(), ret_buffer.size(), at_);
    at_ += got;
    return got;
  }

private:
  std::string lines_;
  size_t at_ = 0;
};

} // namespace

fs::path unpacker() {
  return helper_program("megahost-unpack");
}

std::unique_ptr<InputStream>
open_input(const std::string& path, const std::vector<std::string>& columns) {
  std::unique_ptr<InputStream> input;
  if (is_columns_name(path)) {
    std::vector<std::string> words{column_reader(path), path};
    words.insert(words.end(), columns.begin(), columns.end());
    input = std::make_unique<ProgramInput>(std::move(words), path);
  } else if (is_compressed_name(path)) {
    const std::vector<std::string> words{unpacker(), "--decompress", path};
    input = std::make_unique<ProgramInput>(words, path);
  } else {
    input = open_file_input(path);
  }
  if (without_compression(path).ends_with(".mds")) {
    input = std::make_unique<MdsInput>(path, *input);
  }
  return input;
}

} // namespace mh
