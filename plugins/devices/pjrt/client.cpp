#include "client.hpp"

#include "pjrt_c_api.h"

#include <megahost/error.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pjrt {

namespace {

/// Arguments of a call: all zero but their own size, by which both sides know each other's version.
template <class T>
T arguments(size_t size) {
  T made{};
  made.struct_size = size;
  return made;
}

#define PJRT_ARGUMENTS(type) arguments<type>(type##_STRUCT_SIZE)

// Fields of Protocol Buffers, of which compile options are four: protobuf.dev, "Encoding".
void add_number(std::string& bytes, uint64_t number) {
  for (; number >= 0x80; number >>= 7) {
    bytes += static_cast<char>(number | 0x80);
  }
  bytes += static_cast<char>(number);
}

void add_field(std::string& bytes, uint64_t field, uint64_t number) {
  add_number(bytes, field << 3);
  add_number(bytes, number);
}

void add_field(std::string& bytes, uint64_t field, const std::string& message) {
  add_number(bytes, (field << 3) | 2);
  add_number(bytes, message.size());
  bytes += message;
}

/// xla.CompileOptionsProto of replicas on the devices with these global ids.
///
/// Source:  xla/pjrt/proto/compile_options.proto, xla/xla_data.proto
std::string compile_options(const std::vector<int>& devices) {
  std::string ids, computation, assignment, build, options;
  for (const int device : devices) {
    add_number(ids, static_cast<uint64_t>(device));
  }
  add_field(computation, 1, ids);                     // ComputationDevice.replica_device_ids
  add_field(assignment, 1, uint64_t{devices.size()}); // DeviceAssignmentProto.replica_count
  add_field(assignment, 2, uint64_t{1});              // .computation_count
  add_field(assignment, 3, computation);              // .computation_devices
  add_field(build, 1, ~uint64_t{0});             // ExecutableBuildOptionsProto.device_ordinal: -1
  add_field(build, 4, uint64_t{devices.size()}); // .num_replicas
  add_field(build, 5, uint64_t{1});              // .num_partitions
  add_field(build, 9, assignment);               // .device_assignment
  add_field(options, 3, build);                  // CompileOptionsProto.executable_build_options
  return options;
}

PJRT_Buffer_Type type_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? PJRT_Buffer_Type_F32
         : dtype == at::kDouble   ? PJRT_Buffer_Type_F64
         : dtype == at::kBFloat16 ? PJRT_Buffer_Type_BF16
         : dtype == at::kHalf     ? PJRT_Buffer_Type_F16
         : dtype == at::kLong     ? PJRT_Buffer_Type_S64
         : dtype == at::kInt      ? PJRT_Buffer_Type_S32
         : dtype == at::kBool     ? PJRT_Buffer_Type_PRED
                                  : PJRT_Buffer_Type_U8;
}

PJRT_NamedValue named_value(const ClientOption& option) {
  auto named = PJRT_ARGUMENTS(PJRT_NamedValue);
  named.name = option.name.c_str();
  named.name_size = option.name.size();
  named.value_size = 1;
  if (const auto* number = std::get_if<int64_t>(&option.value)) {
    named.type = PJRT_NamedValue_kInt64;
    named.int64_value = *number;
  } else if (const auto* real = std::get_if<double>(&option.value)) {
    named.type = PJRT_NamedValue_kFloat;
    named.float_value = static_cast<float>(*real);
  } else if (const auto* flag = std::get_if<bool>(&option.value)) {
    named.type = PJRT_NamedValue_kBool;
    named.bool_value = *flag;
  } else {
    const auto& text = std::get<std::string>(option.value);
    named.type = PJRT_NamedValue_kString;
    named.string_value = text.c_str();
    named.value_size = text.size();
  }
  return named;
}

/// The functions of a plugin.
///
/// Throws:  mh::Error if it is none, or lacks functions of this header
const PJRT_Api* open_plugin(const std::string& library) {
  void* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    throw mh::Error(
        "the PJRT plugin " + library + " cannot be opened: " + dlerror(),
        "device.plugin names a shared library that exports GetPjrtApi, such as libtpu.so"
    );
  }
  auto* get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(opened, "GetPjrtApi"));
  if (get == nullptr) {
    throw mh::Error(
        library + " is no PJRT plugin: it does not export GetPjrtApi",
        "device.plugin names a shared library that does, such as libtpu.so"
    );
  }
  const PJRT_Api* api = get();
  const auto& version = api->pjrt_api_version;
  constexpr size_t kUsed =
      offsetof(PJRT_Api, PJRT_Executable_GetCompiledMemoryStats) + sizeof(void*);
  if (version.major_version != PJRT_API_MAJOR || api->struct_size < kUsed) {
    throw mh::Error(
        library + " speaks PJRT " + std::to_string(version.major_version) + "." +
            std::to_string(version.minor_version) + ", and this device needs " +
            std::to_string(PJRT_API_MAJOR) + ".x with the functions of 0.50 or newer",
        "install another version of the plugin"
    );
  }
  return api;
}

} // namespace

PjrtBuffer::PjrtBuffer(const PjrtClient& client, PJRT_Buffer* raw)
    : client_(&client)
    , raw_(raw) {}

PjrtBuffer::~PjrtBuffer() {
  if (raw_ != nullptr) {
    auto call = PJRT_ARGUMENTS(PJRT_Buffer_Destroy_Args);
    call.buffer = raw_;
    client_->api_->PJRT_Buffer_Destroy(&call); // an error here says nothing that matters
  }
}

PjrtBuffer::PjrtBuffer(PjrtBuffer&& other) noexcept
    : client_(other.client_)
    , raw_(std::exchange(other.raw_, nullptr)) {}

PjrtBuffer& PjrtBuffer::operator=(PjrtBuffer&& other) noexcept {
  std::swap(client_, other.client_);
  std::swap(raw_, other.raw_);
  return *this;
}

void PjrtBuffer::copy_to(const at::Tensor& host) const {
  MH_ASSERT(host.is_contiguous() && host.is_cpu(), "a buffer is copied to contiguous host memory");
  auto call = PJRT_ARGUMENTS(PJRT_Buffer_ToHostBuffer_Args);
  call.src = raw_;
  call.dst = host.mutable_data_ptr();
  call.dst_size = host.nbytes();
  client_->check(client_->api_->PJRT_Buffer_ToHostBuffer(&call), "reading a tensor");
  client_->await(call.event, "reading a tensor");
}

Executable::Executable(const PjrtClient& client, PJRT_LoadedExecutable* raw)
    : client_(client)
    , raw_(raw) {
  ask("compiling", [this](PJRT_Executable* executable) {
    auto count = PJRT_ARGUMENTS(PJRT_Executable_NumOutputs_Args);
    count.executable = executable;
    client_.check(client_.api_->PJRT_Executable_NumOutputs(&count), "compiling");
    results_ = count.num_outputs;
  });
}

template <class Question>
void Executable::ask(const char* doing, const Question& question) const {
  auto loaded = PJRT_ARGUMENTS(PJRT_LoadedExecutable_GetExecutable_Args);
  loaded.loaded_executable = raw_;
  client_.check(client_.api_->PJRT_LoadedExecutable_GetExecutable(&loaded), doing);
  question(loaded.executable);
  auto ended = PJRT_ARGUMENTS(PJRT_Executable_Destroy_Args);
  ended.executable = loaded.executable;
  client_.check(client_.api_->PJRT_Executable_Destroy(&ended), doing);
}

Executable::~Executable() {
  for (PJRT_Event* event : running_) {
    try {
      client_.await(event, "running the step");
    } catch (const mh::Error&) { // who reads its results hears of it
    }
  }
  auto call = PJRT_ARGUMENTS(PJRT_LoadedExecutable_Destroy_Args);
  call.executable = raw_;
  client_.api_->PJRT_LoadedExecutable_Destroy(&call);
}

void Executable::settle() {
  const auto over = std::stable_partition(running_.begin(), running_.end(), [this](auto* event) {
    auto ready = PJRT_ARGUMENTS(PJRT_Event_IsReady_Args);
    ready.event = event;
    client_.check(client_.api_->PJRT_Event_IsReady(&ready), "running the step");
    return !ready.is_ready;
  });
  const std::vector<PJRT_Event*> ended(over, running_.end());
  running_.erase(over, running_.end());
  for (PJRT_Event* event : ended) {
    client_.await(event, "running the step");
  }
}

std::vector<std::vector<PjrtBuffer>>
Executable::run(const std::vector<std::vector<const PjrtBuffer*>>& given) {
  settle();
  const size_t devices = given.size();
  std::vector<std::vector<PJRT_Buffer*>> inputs(devices), outputs(devices);
  std::vector<PJRT_Buffer* const*> input_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < devices; ++d) {
    for (const PjrtBuffer* one : given[d]) {
      inputs[d].push_back(one->raw());
    }
    outputs[d].resize(results_);
    input_lists.push_back(inputs[d].data());
    output_lists.push_back(outputs[d].data());
  }
  std::vector<PJRT_Event*> done(devices);
  auto options = PJRT_ARGUMENTS(PJRT_ExecuteOptions);
  auto call = PJRT_ARGUMENTS(PJRT_LoadedExecutable_Execute_Args);
  call.executable = raw_;
  call.options = &options;
  call.argument_lists = input_lists.data();
  call.num_devices = devices;
  call.num_args = inputs.front().size();
  call.output_lists = output_lists.data();
  call.device_complete_events = done.data();
  client_.check(client_.api_->PJRT_LoadedExecutable_Execute(&call), "running the step");
  std::vector<std::vector<PjrtBuffer>> results(devices);
  for (size_t d = 0; d < devices; ++d) {
    for (PJRT_Buffer* one : outputs[d]) {
      results[d].emplace_back(client_, one);
    }
  }
  running_.insert(running_.end(), done.begin(), done.end());
  return results;
}

std::string Executable::serialized() const {
  std::string bytes;
  ask("serializing the step", [this, &bytes](PJRT_Executable* executable) {
    auto made = PJRT_ARGUMENTS(PJRT_Executable_Serialize_Args);
    made.executable = executable;
    client_.check(client_.api_->PJRT_Executable_Serialize(&made), "serializing the step");
    bytes.assign(made.serialized_bytes, made.serialized_bytes_size);
    made.serialized_executable_deleter(made.serialized_executable);
  });
  return bytes;
}

int64_t Executable::memory() const {
  int64_t bytes = 0;
  ask("asking for memory", [this, &bytes](PJRT_Executable* executable) {
    auto sizes = PJRT_ARGUMENTS(PJRT_Executable_GetCompiledMemoryStats_Args);
    sizes.executable = executable;
    client_.check(
        client_.api_->PJRT_Executable_GetCompiledMemoryStats(&sizes), "asking for memory"
    );
    bytes = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes +
            sizes.temp_size_in_bytes;
  });
  return bytes;
}

PjrtClient::PjrtClient(const std::string& library, const std::vector<ClientOption>& options)
    : library_(library)
    , api_(open_plugin(library)) {
  auto begin = PJRT_ARGUMENTS(PJRT_Plugin_Initialize_Args);
  check(api_->PJRT_Plugin_Initialize(&begin), "starting");
  std::vector<PJRT_NamedValue> named;
  for (const ClientOption& option : options) {
    named.push_back(named_value(option));
  }
  auto make = PJRT_ARGUMENTS(PJRT_Client_Create_Args);
  make.create_options = named.data();
  make.num_options = named.size();
  check(api_->PJRT_Client_Create(&make), "starting");
  client_ = make.client;
  auto list = PJRT_ARGUMENTS(PJRT_Client_AddressableDevices_Args);
  list.client = client_;
  check(api_->PJRT_Client_AddressableDevices(&list), "starting");
  devices_.assign(
      list.addressable_devices, list.addressable_devices + list.num_addressable_devices
  );
}

PjrtClient::~PjrtClient() {
  if (client_ != nullptr) {
    auto call = PJRT_ARGUMENTS(PJRT_Client_Destroy_Args);
    call.client = client_;
    api_->PJRT_Client_Destroy(&call);
  }
}

std::string PjrtClient::fingerprint() const {
  auto name = PJRT_ARGUMENTS(PJRT_Client_PlatformName_Args);
  name.client = client_;
  check(api_->PJRT_Client_PlatformName(&name), "asking for its name");
  auto version = PJRT_ARGUMENTS(PJRT_Client_PlatformVersion_Args);
  version.client = client_;
  check(api_->PJRT_Client_PlatformVersion(&version), "asking for its version");
  const auto& api = api_->pjrt_api_version;
  return std::string(name.platform_name, name.platform_name_size) + ", " +
         std::string(version.platform_version, version.platform_version_size) + ", PJRT " +
         std::to_string(api.major_version) + "." + std::to_string(api.minor_version);
}

std::unique_ptr<Executable>
PjrtClient::compile(std::string_view module, const std::vector<size_t>& devices) const {
  std::vector<int> ids;
  for (const size_t device : devices) {
    auto described = PJRT_ARGUMENTS(PJRT_Device_GetDescription_Args);
    described.device = devices_.at(device);
    check(api_->PJRT_Device_GetDescription(&described), "compiling");
    auto id = PJRT_ARGUMENTS(PJRT_DeviceDescription_Id_Args);
    id.device_description = described.device_description;
    check(api_->PJRT_DeviceDescription_Id(&id), "compiling");
    ids.push_back(id.id);
  }
  constexpr std::string_view kFormat = "mlir";
  const std::string options = compile_options(ids);
  std::string code(module); // the interface takes no constant text
  auto text = PJRT_ARGUMENTS(PJRT_Program);
  text.code = code.data();
  text.code_size = code.size();
  text.format = kFormat.data();
  text.format_size = kFormat.size();
  auto call = PJRT_ARGUMENTS(PJRT_Client_Compile_Args);
  call.client = client_;
  call.program = &text;
  call.compile_options = options.data();
  call.compile_options_size = options.size();
  check(api_->PJRT_Client_Compile(&call), "compiling the step");
  return std::make_unique<Executable>(*this, call.executable);
}

std::unique_ptr<Executable> PjrtClient::load(std::string_view serialized) const {
  auto call = PJRT_ARGUMENTS(PJRT_Executable_DeserializeAndLoad_Args);
  call.client = client_;
  call.serialized_executable = serialized.data();
  call.serialized_executable_size = serialized.size();
  check(api_->PJRT_Executable_DeserializeAndLoad(&call), "loading a compiled step");
  return std::make_unique<Executable>(*this, call.loaded_executable);
}

PjrtBuffer PjrtClient::upload(const at::Tensor& host, size_t device) const {
  const at::Tensor dense = host.contiguous();
  auto call = PJRT_ARGUMENTS(PJRT_Client_BufferFromHostBuffer_Args);
  call.client = client_;
  call.data = dense.const_data_ptr();
  call.type = type_of(dense.scalar_type());
  call.dims = dense.sizes().data();
  call.num_dims = dense.sizes().size();
  call.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  call.device = devices_.at(device);
  check(api_->PJRT_Client_BufferFromHostBuffer(&call), "writing a tensor");
  PjrtBuffer buffer(*this, call.buffer);
  await(call.done_with_host_buffer, "writing a tensor");
  return buffer;
}

PjrtBuffer PjrtClient::copy(const PjrtBuffer& tensor, size_t device) const {
  if (api_->PJRT_Buffer_CopyToDevice == nullptr) {
    throw mh::Error(
        "the PJRT plugin " + library_ +
            " copies no tensors from device to device, as stages of a "
            "pipeline do",
        "set parallel.pipeline to 1"
    );
  }
  auto call = PJRT_ARGUMENTS(PJRT_Buffer_CopyToDevice_Args);
  call.buffer = tensor.raw();
  call.dst_device = devices_.at(device);
  check(api_->PJRT_Buffer_CopyToDevice(&call), "copying a tensor to another device");
  return {*this, call.dst_buffer};
}

void PjrtClient::check(PJRT_Error* error, const char* doing) const {
  if (error == nullptr) {
    return;
  }
  auto message = PJRT_ARGUMENTS(PJRT_Error_Message_Args);
  message.error = error;
  api_->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);
  auto code = PJRT_ARGUMENTS(PJRT_Error_GetCode_Args);
  code.error = error;
  const bool full =
      api_->PJRT_Error_GetCode(&code) == nullptr && code.code == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  auto ended = PJRT_ARGUMENTS(PJRT_Error_Destroy_Args);
  ended.error = error;
  api_->PJRT_Error_Destroy(&ended);
  throw mh::Error(
      "the PJRT plugin " + library_ + " failed while " + doing + ": " + text,
      full ? "lower batch.micro or model.seq_length, or recompute more" : "",
      full ? mh::exit_code::memory : mh::exit_code::other
  );
}

void PjrtClient::await(PJRT_Event* event, const char* doing) const {
  if (event == nullptr) {
    return;
  }
  auto wait = PJRT_ARGUMENTS(PJRT_Event_Await_Args);
  wait.event = event;
  PJRT_Error* error = api_->PJRT_Event_Await(&wait);
  auto ended = PJRT_ARGUMENTS(PJRT_Event_Destroy_Args);
  ended.event = event;
  api_->PJRT_Event_Destroy(&ended);
  check(error, doing);
}

} // namespace pjrt
