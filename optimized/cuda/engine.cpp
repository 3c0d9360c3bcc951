#include <memory>
#include <new>
#include <string>

#include "core/config.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/runtime/emulated_device.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater {

namespace {

/// A kind of device and the kernels that were compiled for it.
struct CudaVariant {
  const char* name;
  const char* description;
  cuda::Entries (*entries)();
  std::unique_ptr<cuda::Device> (*open)(std::span<const cuda::Kernel> kernels);
  std::string (*missing)();
  std::string (*isa)();
};

class CudaEngine final : public Engine {
 public:
  explicit CudaEngine(const CudaVariant& variant)
      : variant_(variant), isa_(variant.isa()), dispatch_(variant.entries()) {}

  [[nodiscard]] std::string_view name() const override { return variant_.name; }
  [[nodiscard]] std::string_view isa() const override { return isa_; }
  [[nodiscard]] std::string_view description() const override { return variant_.description; }
  [[nodiscard]] std::string unavailable_because() const override { return variant_.missing(); }
  [[nodiscard]] Claims claims() const override {
    Claims claims;
    claims.bitwise_threads = true;  // Options::threads is not used
    claims.bitwise_runs = true;
    claims.bitwise_schedules = true;
    claims.bf16_weights = true;
    return claims;
  }

  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    const std::string reason = unavailable_because();
    if (!reason.empty()) throw Error(ErrorCode::engine_unavailable, std::string(name()) + ": " + reason);
    const EffectiveOptions effective = core::resolve(shape, options, 1);
    try {
      return std::make_unique<cuda::CudaSession>(variant_.open(dispatch_.kernels()), dispatch_, shape,
                                                 options, effective);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory, "no memory for a session of capacity " +
                                                std::to_string(shape.capacity) +
                                                "; allowed: what the machine and its device can hold");
    }
  }

 private:
  const CudaVariant& variant_;
  std::string isa_;
  cuda::Dispatch dispatch_;
};

#ifdef HEADWATER_TESTING
std::unique_ptr<cuda::Device> open_emulated(std::span<const cuda::Kernel> kernels) {
  return cuda::open_emulated_device(kernels);
}
std::string never_missing() { return ""; }
std::string emulated_isa() { return "sm_80 emulated"; }
#endif

}  // namespace

#ifdef HEADWATER_TESTING
const Engine& cuda_emulated_engine() {
  static const CudaVariant variant{
      "cuda-emulated",        "the CUDA engine on fibers of this processor (test builds)",
      cuda::on_host::entries, open_emulated,
      never_missing,          emulated_isa};
  static const CudaEngine engine(variant);
  return engine;
}
#endif

}  // namespace headwater
