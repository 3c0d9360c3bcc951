#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/emulated_device.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater {

namespace {

/// HEADWATER_CUDA_GRAPHS=off: for whoever looks for a fault in what is replayed.
cuda::Launching launching() {
  const char* graphs = std::getenv("HEADWATER_CUDA_GRAPHS");
  return graphs != nullptr && std::string_view(graphs) == "off" ? cuda::Launching::one_by_one
                                                                : cuda::Launching::replayed;
}

/// A kind of device and the kernels that were compiled for it.
struct CudaVariant {
  const char* name;
  const char* isa;  ///< the least that the kernels are compiled for
  const std::string& (*description)();
  cuda::Entries (*entries)();
  std::unique_ptr<cuda::Device> (*open)(std::span<const cuda::Kernel> kernels, int ordinal);
  int (*devices)();
  int (*current)();
  std::string (*missing)();
  bool device_memory;
  cuda::Sm90Switch (*sm90_switch)();  ///< asked at every open()
};

class CudaEngine final : public Engine {
 public:
  explicit CudaEngine(const CudaVariant& variant) : variant_(variant), dispatch_(variant.entries()) {}

  [[nodiscard]] std::string_view name() const override { return variant_.name; }
  [[nodiscard]] std::string_view isa() const override { return variant_.isa; }
  [[nodiscard]] std::string_view description() const override { return variant_.description(); }
  [[nodiscard]] std::string unavailable_because() const override { return variant_.missing(); }
  [[nodiscard]] Claims claims() const override {
    Claims claims;
    claims.bitwise_threads = true;  // Options::threads is not used
    claims.bitwise_runs = true;
    claims.bitwise_schedules = true;
    claims.bf16_weights = true;
    claims.device_memory = variant_.device_memory;
    claims.f16_weights = true;
    claims.rows_alone = true;
    return claims;
  }

  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    try {
      const EffectiveOptions effective = core::resolve(shape, options, 1);
      core::require_no_sketches(options, name());
      core::require_no_checkpoints(options, name());
      core::require_own_rows(options, name());
      core::require_no_kv_bits(options, name());
      core::require_own_memory(options, name());
      core::require_equal_layers(options, name());
      const int devices = variant_.devices();
      const int ordinal = options.device.value_or(variant_.current());
      if (devices > 0 && (ordinal < 0 || ordinal >= devices)) {
        throw Error(ErrorCode::invalid_argument, "device is " + std::to_string(ordinal) + "; allowed: 0 .. " +
                                                     std::to_string(devices - 1));
      }
      return std::make_unique<cuda::CudaSession>(
          variant_.open(dispatch_.kernels(), ordinal), dispatch_, shape, options, effective, launching(),
          cuda::RowPlace{options.row_memory == RowMemory::device, options.stream}, variant_.sm90_switch());
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory, "no memory for a session of capacity " +
                                                std::to_string(shape.capacity) +
                                                "; allowed: what the machine and its device can hold");
    }
  }

 private:
  const CudaVariant& variant_;
  cuda::Dispatch dispatch_;
};

#ifdef HEADWATER_TESTING
std::unique_ptr<cuda::Device> open_emulated(std::span<const cuda::Kernel> kernels, int ordinal) {
  cuda::EmulationOptions options;
  options.ordinal = ordinal;
  return cuda::open_emulated_device(kernels, options);
}
int emulated_devices() { return cuda::kEmulatedDevices; }
const std::string& emulated_description() {
  static const std::string text = "the CUDA engine on fibers of this processor (test builds)";
  return text;
}
cuda::Sm90Switch no_sm90() { return {false}; }

/// A device of compute capability 9.0 with the switch on, its kernels for chunks of every length.
std::unique_ptr<cuda::Device> open_emulated_sm90(std::span<const cuda::Kernel> kernels, int ordinal) {
  cuda::EmulationOptions options;
  options.ordinal = ordinal;
  options.compute_capability = 90;
  return cuda::open_emulated_device(kernels, options);
}
const std::string& emulated_sm90_description() {
  static const std::string text = "cuda-emulated with the kernels of sm_90a (test builds)";
  return text;
}
cuda::Sm90Switch always_sm90() { return {true, 1}; }
#endif

#ifdef HEADWATER_CUDA_ENGINE
/// Asked once, of the device that is current then: a driver that comes later is for the next process. open() asks again, of
/// the device that it is to open.
std::string missing_gpu() {
  static const std::string reason = cuda::cuda_unavailable_because(cuda::cuda_current_device());
  return reason;
}
/// Says which kernels rows that all of them take would get here.
const std::string& gpu_description() {
  static const std::string text = [] {
    const std::string kernels =
        missing_gpu().empty() ? cuda::sm90_text(cuda::cuda_compute_capability(cuda::cuda_current_device()))
                              : "";
    return "NVIDIA GPUs from compute capability 8.0 on" + kernels;
  }();
  return text;
}
#endif

}  // namespace

#ifdef HEADWATER_CUDA_ENGINE
const Engine& cuda_engine() {
  static const CudaVariant variant{"cuda",
                                   "sm_80",
                                   gpu_description,
                                   cuda::on_gpu::entries,
                                   cuda::open_cuda_device,
                                   cuda::cuda_devices,
                                   cuda::cuda_current_device,
                                   missing_gpu,
                                   true,
                                   cuda::sm90_by_environment};
  static const CudaEngine engine(variant);
  return engine;
}
#endif

#ifdef HEADWATER_TESTING
const Engine& cuda_emulated_engine() {
  static const CudaVariant variant{
      "cuda-emulated", "sm_80 emulated", emulated_description,          cuda::on_host::entries,
      open_emulated,   emulated_devices, cuda::emulated_current_device, cuda::emulation_unavailable_because,
      false,           no_sm90};
  static const CudaEngine engine(variant);
  return engine;
}

const Engine& cuda_emulated_sm90_engine() {
  static const CudaVariant variant{"cuda-emulated-sm90",
                                   "sm_90a emulated",
                                   emulated_sm90_description,
                                   cuda::on_host::entries,
                                   open_emulated_sm90,
                                   emulated_devices,
                                   cuda::emulated_current_device,
                                   cuda::emulation_unavailable_because,
                                   false,
                                   always_sm90};
  static const CudaEngine engine(variant);
  return engine;
}
#endif

}  // namespace headwater
