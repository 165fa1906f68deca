#pragma once
/// A client of PJRT, the C interface of XLA's devices: opens a plugin, compiles a module of
/// StableHLO, runs it.
///
/// Source:  pjrt_c_api.h next to this file, of OpenXLA (Apache-2.0), version 0.81

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct PJRT_Api;
struct PJRT_Buffer;
struct PJRT_Client;
struct PJRT_Device;
struct PJRT_Error;
struct PJRT_Event;
struct PJRT_LoadedExecutable;

namespace pjrt {

/// An option of a plugin's client: {"cpu_device_count", 1}.
struct ClientOption {
  std::string name;
  std::variant<bool, int64_t, double, std::string> value;
};

class PjrtClient;

/// A tensor in a device's memory.
class PjrtBuffer {
public:
  PjrtBuffer(const PjrtClient& client, PJRT_Buffer* raw);
  ~PjrtBuffer();
  PjrtBuffer(PjrtBuffer&& other) noexcept;
  PjrtBuffer& operator=(PjrtBuffer&& other) noexcept;

  /// Copies it to `host`, a contiguous tensor of its shape and type.
  void copy_to(const at::Tensor& host) const;

  [[nodiscard]] PJRT_Buffer* raw() const { return raw_; }

private:
  const PjrtClient* client_;
  PJRT_Buffer* raw_;
};

/// A module that a plugin has compiled, for one device or for several, one a replica.
class Executable {
public:
  Executable(const PjrtClient& client, PJRT_LoadedExecutable* raw);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  /// Begins to run it on all its devices: [device][argument] -> [device][result]. Reading a result
  /// waits for it. Arguments whose memory a result takes over are not to be used again.
  ///
  /// Throws:  mh::Error, also for an earlier run that has failed meanwhile
  [[nodiscard]] std::vector<std::vector<PjrtBuffer>>
  run(const std::vector<std::vector<const PjrtBuffer*>>& arguments);

  /// The executable as bytes, for PjrtClient::load of the same plugin.
  [[nodiscard]] std::string serialized() const;

  /// Bytes of the device's memory while it runs: arguments, results, and what lies between.
  [[nodiscard]] int64_t memory() const;

private:
  /// Asks what is known of the executable apart from devices.
  template <class Question>
  void ask(const char* doing, const Question& question) const;

  /// Drops the events of runs that are over.
  void settle();

  const PjrtClient& client_;
  PJRT_LoadedExecutable* raw_;
  size_t results_ = 0;
  std::vector<PJRT_Event*> running_; // ends of runs
};

/// A plugin's devices. Plugins stay open until the process ends. Everything throws mh::Error with
/// what the plugin says.
class PjrtClient {
public:
  /// Throws:  mh::Error if `library` cannot be opened, is no PJRT plugin, or one that is too old
  PjrtClient(const std::string& library, const std::vector<ClientOption>& options);
  ~PjrtClient();
  PjrtClient(const PjrtClient&) = delete;
  PjrtClient& operator=(const PjrtClient&) = delete;

  [[nodiscard]] size_t devices() const { return devices_.size(); }

  [[nodiscard]] const std::string& library() const { return library_; }

  /// "cpu, XLA ..., PJRT 0.115": what compiled modules depend on.
  [[nodiscard]] std::string fingerprint() const;

  /// For the devices of these numbers, whose places among them are the replicas' numbers.
  [[nodiscard]] std::unique_ptr<Executable>
  compile(std::string_view module, const std::vector<size_t>& devices) const;

  /// An executable that the same plugin has serialized, for the devices that it was compiled for.
  [[nodiscard]] std::unique_ptr<Executable> load(std::string_view serialized) const;

  /// Copies a tensor of the host to a device.
  [[nodiscard]] PjrtBuffer upload(const at::Tensor& host, size_t device) const;

  /// Begins to copy a tensor from one device to another.
  [[nodiscard]] PjrtBuffer copy(const PjrtBuffer& tensor, size_t device) const;

private:
  friend class PjrtBuffer;
  friend class Executable;
  /// Throws:  mh::Error with the message, if there is one
  void check(PJRT_Error* error, const char* doing) const;
  void await(PJRT_Event* event, const char* doing) const;

  std::string library_;
  const PJRT_Api* api_ = nullptr;
  PJRT_Client* client_ = nullptr;
  std::vector<PJRT_Device*> devices_;
};

} // namespace pjrt
