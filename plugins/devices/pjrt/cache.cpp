#include "cache.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <c10/util/Exception.h>

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <system_error>

namespace pjrt {

namespace {

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// Under its name all at once.
void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::path part = file;
  part += "." + std::to_string(getpid()) + ".part";
  {
    std::ofstream stream(part, std::ios::binary);
    stream << bytes;
    stream.close();
    if (!stream) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw mh::Error("the compiled program cannot be written to " + file.string(), "");
    }
  }
  std::filesystem::rename(part, file);
}

} // namespace

std::filesystem::path ProgramCache::file_of(
    const PjrtClient& client, const std::string& module, const std::vector<size_t>& devices
) const {
  std::string key = client.fingerprint() + "\n";
  for (const size_t device : devices) {
    key += std::to_string(device) + " ";
  }
  key += "\n" + module;
  char name[33]; // two hashes of 64 bits
  std::snprintf(
      name, sizeof name, "%016" PRIx64 "%016" PRIx64, mh::hash_text(key), mh::hash_text(key + "\n")
  );
  return folder_ / (std::string(name) + ".pjrt");
}

std::unique_ptr<Executable> ProgramCache::compile(
    const PjrtClient& client, const std::string& module, const std::vector<size_t>& devices
) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    throw mh::Error(
        "device.cache: " + folder_.string() + " cannot be made: " + error.message(),
        "name a folder that this run may write, or leave device.cache out"
    );
  }
  const std::filesystem::path file = file_of(client, module, devices);
  if (std::filesystem::exists(file)) {
    try {
      return client.load(read_file(file));
    } catch (const std::exception& unusable) {
      TORCH_WARN("device.cache: ", file.string(), " is compiled anew: ", unusable.what());
    }
  }
  auto executable = client.compile(module, devices);
  try {
    write_file(file, executable->serialized());
  } catch (const std::exception& unwritten) { // the run has its program, and the next one compiles
    TORCH_WARN("device.cache: ", unwritten.what());
  }
  return executable;
}

} // namespace pjrt
