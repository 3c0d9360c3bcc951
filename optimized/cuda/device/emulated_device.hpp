#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/emulation/block.hpp"

namespace headwater::cuda {

/// When the operations of a stream are done. A schedule that waits for all it needs gives the same bits with both.
enum class Progress {
  eager,  ///< at once, in the order of the calls
  late,   ///< when the host or another stream waits for them, and not before
};

/// What a machine has of them. Streams of one are refused by the other.
inline constexpr int kEmulatedDevices = 2;

/// The calling thread's current one, 0 at first, as cudaGetDevice() and cudaSetDevice() have it. An operation of a device that
/// is not the current one is refused; set: false for an ordinal that there is not.
[[nodiscard]] int emulated_current_device();
bool set_emulated_current_device(int ordinal);

struct EmulationOptions {
  int ordinal = 0;
  int compute_capability = 80;
  int multiprocessors = 4;  ///< few: a grid that fills them stays small
  std::int64_t memory = std::int64_t{1} << 32;
  emulation::Order order = emulation::Order::ascending;
  Progress progress = Progress::late;
  bool tensor_maps =
      true;  ///< of a device of compute capability 9.0; false: a driver that cannot encode them
  std::int64_t most_operations = 500'000'000;  ///< of one block, after which it counts as endless
};

/// Why kernels cannot run here, one line; empty where they can.
[[nodiscard]] std::string emulation_unavailable_because();

/// A device on this processor, which runs kernels on fibers (emulation/block.hpp), blocks on OpenMP's threads. A fault that
/// it finds in a kernel is the device's sticky error. Device memory is host memory between guards, filled with NaN.
/// Error(engine_unavailable) where kernels cannot run here.
[[nodiscard]] std::unique_ptr<Device> open_emulated_device(std::span<const Kernel> kernels,
                                                           const EmulationOptions& options = {});

/// Of a graph that such a device captured, by launch: which launches it waits for, directly or by others.
[[nodiscard]] std::vector<std::vector<bool>> waits_in(Device& emulated, Graph graph);

}  // namespace headwater::cuda
