#include "cuda/device/emulated_device.hpp"

#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/emulated_memory.hpp"
#include "cuda/device/emulated_streams.hpp"
#include "cuda/emulation/grid.hpp"

namespace headwater::cuda {
namespace {

thread_local int current_device = 0;
constexpr CurrentDevice kCurrent{emulated_current_device, set_emulated_current_device};

DeviceInfo info_of(const EmulationOptions& options) {
  DeviceInfo info;
  info.name = "emulated device";
  info.ordinal = options.ordinal;
  info.compute_capability = options.compute_capability;
  info.multiprocessors = options.multiprocessors;
  info.shared_limit = options.compute_capability >= 90 ? kSharedLimitSm90 : kSharedLimitSm80;
  info.memory = options.memory;
  info.emulated = true;
  return info;
}

void copy_bytes(Rows<void> to, Rows<const void> from, std::int64_t bytes, std::int64_t count) {
  for (std::int64_t row = 0; row < count; ++row) {
    std::memmove(static_cast<std::byte*>(to.data) + row * to.pitch,
                 static_cast<const std::byte*>(from.data) + row * from.pitch,
                 static_cast<std::size_t>(bytes));
  }
}

/// Blocks of a kernel that has a multiprocessor of its own, on OpenMP's threads. Throws Fault with that of the first block.
void run_blocks(const Kernel& kernel, Grid grid, bool ascending, const void* params) {
  const auto blocks = static_cast<int>(grid.x);
  int first_failed = blocks;
  std::string failure;
  if (grid.y != 1 || grid.z != 1) {
    throw emulation::Fault(std::string("kernel ") + kernel.name + ": its grid has one axis");
  }
#pragma omp parallel for schedule(dynamic, 1) if (blocks > 1)
  for (int block = 0; block < blocks; ++block) {
    std::string fault;
    try {
      fault = kernel.emulated_block(block, blocks, ascending, params);
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (fault.empty()) continue;
#pragma omp critical(headwater_cuda_blocks)
    if (block < first_failed) {
      first_failed = block;
      failure = fault;
    }
  }
  if (first_failed < blocks) {
    throw emulation::Fault(std::string("kernel ") + kernel.name + ", block " + std::to_string(first_failed) +
                           ": " + failure);
  }
}

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(std::span<const Kernel> kernels, const EmulationOptions& options)
      : Device(info_of(options), kernels, kCurrent),
        options_(options),
        memory_(options.memory),
        all_streams_(options.progress) {}
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;
  ~EmulatedDevice() override { finish(); }

  PointerKind kind(const void* data) override { return memory_.kind(data); }
  float milliseconds(Event, Event) override { return 0.0f; }
  [[nodiscard]] std::vector<std::vector<bool>> waits(Graph graph) { return streams().waits(graph); }

 protected:
  void* do_allocate(std::int64_t bytes, bool pinned) override {
    hold_to_current();
    return memory_.allocate(bytes, pinned);
  }
  void do_name(const void* data, std::int64_t bytes, const char* what) override {
    memory_.name(data, bytes, what);
  }
  void do_release(void* data) noexcept override {
    finish();
    memory_.release(data);
  }
  void do_copy(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes, std::int64_t count,
               Direction direction) override;
  void do_set(Stream stream, void* to, unsigned char value, std::int64_t bytes) override;
  Stream do_stream(bool) override { return streams().stream(); }
  void* native_handle(Stream stream) override;
  Stream do_adopt(void* native) override;
  bool do_captured(Stream stream) override { return streams().captured(stream); }
  Event do_event(bool) override { return streams().event(); }
  void do_record(Event event, Stream stream) override {
    guarded([&] { streams().record(event, stream); });
  }
  void do_wait(Stream stream, Event event) override {
    guarded([&] { streams().wait(stream, event); });
  }
  void do_synchronize(Stream stream) override {
    guarded([&] { streams().drain(stream); });
  }
  void do_synchronize(Event event) override {
    guarded([&] { streams().drain(event); });
  }
  void do_launch(Stream stream, const Kernel& kernel, Grid grid, int shared_bytes,
                 const void* params) override;
  const char* do_encode(const sm90::TileMap& map, sm90::TensorMap& to) override;
  void do_begin_capture(Stream stream) override { streams().begin_capture(stream); }
  Graph do_end_capture(Stream stream) override { return streams().end_capture(stream); }
  void do_replay(Graph graph, Stream stream) override {
    guarded([&] { streams().replay(graph, stream); });
  }
  void do_set_launch(Graph graph, int index, const Kernel& kernel, Grid grid, int shared_bytes,
                     const void* params) override {
    streams().set_launch(graph, index, launch_of(kernel, grid, shared_bytes, params));
  }
  void do_leave_out(Graph graph, int index) override { streams().set_launch(graph, index, {}); }

 private:
  std::function<void()> launch_of(const Kernel& kernel, Grid grid, int shared_bytes, const void* params);
  /// A fault that comes out of an operation is the device's end.
  template <class Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const emulation::Fault& fault) {
      all_streams_.abandon();
      fail(fault.what());
    }
  }
  /// CUDA would do some of these elsewhere and refuse others.
  void hold_to_current() const {
    if (current_device != info().ordinal) {
      throw Error(ErrorCode::internal, "cuda: an operation of device " + std::to_string(info().ordinal) +
                                           " while " + std::to_string(current_device) +
                                           " is the current one");
    }
  }
  EmulatedStreams& streams() {
    hold_to_current();
    return all_streams_;
  }
  /// What is under way, as far as it can be done.
  void finish() noexcept {
    try {
      all_streams_.drain_all();
    } catch (const emulation::Fault& fault) {
      all_streams_.abandon();
      remember(fault.what());
    }
  }
  void note_written(Rows<void> to, std::int64_t bytes, std::int64_t count) {
    const auto* first = static_cast<const std::byte*>(to.data);
    for (std::int64_t row = 0; row < count; ++row) memory_.note_written(first + row * to.pitch, bytes);
  }
  void hold_to_allocation(const void* data, std::int64_t pitch, std::int64_t bytes, std::int64_t count,
                          bool device, const char* which) const;

  void hold_to_guards(const Kernel& kernel) const;

  EmulationOptions options_;
  EmulatedMemory memory_;
  EmulatedStreams all_streams_;
  std::optional<Stream> default_stream_;
};

void EmulatedDevice::hold_to_allocation(const void* data, std::int64_t pitch, std::int64_t bytes,
                                        std::int64_t count, bool device, const char* which) const {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::invalid_argument, std::string("cuda: copy: the ") + which + " " + what);
  };
  const bool on_device = memory_.kind(data) == PointerKind::device;
  if (on_device != device) refuse(device ? "is no device memory" : "is device memory, not the host's");
  if (!device) return;
  const auto* first = static_cast<const std::byte*>(data);
  if (memory_.end_of_allocation(data) - first < (count - 1) * pitch + bytes)
    refuse("does not lie in one allocation");
}

void EmulatedDevice::do_copy(Stream stream, Rows<void> to, Rows<const void> from, std::int64_t bytes,
                             std::int64_t count, Direction direction) {
  hold_to_allocation(to.data, to.pitch, bytes, count, direction != Direction::device_to_host, "target");
  hold_to_allocation(from.data, from.pitch, bytes, count, direction != Direction::host_to_device, "source");
  if (direction == Direction::host_to_device && memory_.kind(from.data) == PointerKind::host) {
    // Pageable memory has been read when the call returns.
    std::vector<std::byte> staged(static_cast<std::size_t>(bytes * count));
    copy_bytes({staged.data(), bytes}, from, bytes, count);
    guarded([&] {
      streams().enqueue(stream, [this, to, bytes, count, staged = std::move(staged)] {
        copy_bytes(to, {staged.data(), bytes}, bytes, count);
        note_written(to, bytes, count);
      });
    });
    return;
  }
  guarded([&] {
    streams().enqueue(stream, [=, this] {
      const auto* first = static_cast<const std::byte*>(from.data);
      for (std::int64_t row = 0; row < count; ++row)
        memory_.require_written(first + row * from.pitch, bytes, "copy");
      copy_bytes(to, from, bytes, count);
      note_written(to, bytes, count);
    });
    // And has been written.
    if (direction == Direction::device_to_host && memory_.kind(to.data) == PointerKind::host)
      streams().drain(stream);
  });
}

void EmulatedDevice::do_set(Stream stream, void* to, unsigned char value, std::int64_t bytes) {
  hold_to_allocation(to, bytes, bytes, 1, true, "target");
  guarded([&] {
    streams().enqueue(stream, [=, this] {
      std::memset(to, value, static_cast<std::size_t>(bytes));
      memory_.note_written(to, bytes);
    });
  });
}

std::function<void()> EmulatedDevice::launch_of(const Kernel& kernel, Grid grid, int shared_bytes,
                                                const void* params) {
  const auto* bytes = static_cast<const std::byte*>(params);
  // 16 bytes are what parameters without tensor maps are aligned to.
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  std::vector<Block> copied((static_cast<std::size_t>(kernel.params_bytes) + sizeof(Block) - 1) /
                            sizeof(Block));
  std::memcpy(copied.data(), bytes, static_cast<std::size_t>(kernel.params_bytes));
  return [this, &kernel, grid, shared_bytes, copied = std::move(copied)] {
    if (kernel.emulated_block != nullptr) {
      const auto params_bytes = static_cast<std::size_t>(kernel.params_bytes);
      std::vector<sm90::TensorMap> aligned(params_bytes / sizeof(sm90::TensorMap) + 1);
      std::memcpy(aligned.data(), copied.data(), params_bytes);
      run_blocks(kernel, grid, options_.order == emulation::Order::ascending, aligned.data());
      memory_.assume_all_written();
      hold_to_guards(kernel);
      return;
    }
    emulation::Launch launch;
    launch.name = kernel.name;
    launch.kernel = kernel.emulated;
    launch.params = copied.data();
    launch.threads = kernel.threads;
    launch.shared_bytes = shared_bytes;
    launch.grid = grid;
    launch.order = options_.order;
    launch.most_operations = options_.most_operations;
    launch.memory = &memory_;
    emulation::run_grid(launch);
    hold_to_guards(kernel);
  };
}

void EmulatedDevice::hold_to_guards(const Kernel& kernel) const {
  if (const std::int64_t hurt = memory_.overrun(); hurt != 0) {
    throw emulation::Fault(std::string("kernel ") + kernel.name + ": wrote outside of an allocation of " +
                           std::to_string(hurt) + " bytes");
  }
}

const char* EmulatedDevice::do_encode(const sm90::TileMap& map, sm90::TensorMap& to) {
  if (!options_.tensor_maps) return "the driver has no cuTensorMapEncodeTiled";
  const std::byte* end = memory_.end_of_allocation(map.base);
  std::int64_t bytes = 2 * map.sizes[0];
  for (int axis = 1; axis < sm90::TileMap::kAxes; ++axis) {
    bytes += (map.sizes[axis] - 1) * map.strides[axis - 1];
  }
  if (end == nullptr || end - static_cast<const std::byte*>(map.base) < bytes) {
    fail("a tensor map does not lie in one allocation");
  }
  std::memcpy(to.bytes, &map, sizeof(map));
  return nullptr;
}

void EmulatedDevice::do_launch(Stream stream, const Kernel& kernel, Grid grid, int shared_bytes,
                               const void* params) {
  guarded([&] { streams().enqueue_launch(stream, launch_of(kernel, grid, shared_bytes, params)); });
}

// A handle counts the streams of all devices in turns from 1 on; null, as with CUDA, is the device's one default stream.
void* EmulatedDevice::native_handle(Stream stream) {
  const std::uintptr_t place = static_cast<std::uintptr_t>(stream) * kEmulatedDevices;
  return reinterpret_cast<void*>(place + static_cast<std::uintptr_t>(info().ordinal) +
                                 1);  // NOLINT(performance-no-int-to-ptr)
}

Stream EmulatedDevice::do_adopt(void* native) {
  if (native != nullptr) {
    const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(native) - 1;
    if (place % kEmulatedDevices != static_cast<std::uintptr_t>(info().ordinal)) refuse_stream();
    return static_cast<Stream>(place / kEmulatedDevices);
  }
  if (!default_stream_) default_stream_ = streams().stream();
  return *default_stream_;
}

}  // namespace

int emulated_current_device() { return current_device; }

bool set_emulated_current_device(int ordinal) {
  if (ordinal < 0 || ordinal >= kEmulatedDevices) return false;
  current_device = ordinal;
  return true;
}

std::string emulation_unavailable_because() {
  return HEADWATER_CUDA_RUNS_HERE ? ""
                                  : "its kernels are compiled for AVX2 and FMA, which this processor lacks";
}

std::unique_ptr<Device> open_emulated_device(std::span<const Kernel> kernels,
                                             const EmulationOptions& options) {
  if (const std::string reason = emulation_unavailable_because(); !reason.empty()) {
    throw Error(ErrorCode::engine_unavailable, "the emulated device: " + reason);
  }
  for (const Kernel& kernel : kernels) {
    if (kernel.emulated == nullptr && kernel.emulated_block == nullptr) {
      throw Error(ErrorCode::internal,
                  std::string("cuda: kernel ") + kernel.name + " has no emulation in its row");
    }
  }
  return std::make_unique<EmulatedDevice>(kernels, options);
}

std::vector<std::vector<bool>> waits_in(Device& emulated, Graph graph) {
  return dynamic_cast<EmulatedDevice&>(emulated).waits(graph);
}

}  // namespace headwater::cuda
