#include <omp.h>

#include <memory>
#include <new>
#include <string>

#include "core/config.hpp"
#include "cpu/cpu_session.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater {

namespace {

/// One engine per table of kernels.
class CpuEngine final : public Engine {
 public:
  CpuEngine(std::string_view name, std::string_view description, const cpu::KernelTable& kernels)
      : name_(name), description_(description), kernels_(kernels) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string_view isa() const override { return kernels_.isa; }
  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] std::string unavailable_because() const override {
    return __builtin_cpu_supports("sse4.2") ? "" : "the processor lacks SSE4.2";
  }
  [[nodiscard]] Claims claims() const override {
    Claims claims;
    claims.bitwise_threads = true;
    claims.bitwise_runs = true;
    claims.bitwise_schedules = true;
    claims.no_allocation = true;
    return claims;
  }

  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    const EffectiveOptions effective = core::resolve(shape, options, default_threads());
    try {
      return std::make_unique<cpu::CpuSession>(kernels_, shape, options, effective);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory, "no memory for a session of capacity " +
                                                std::to_string(shape.capacity) +
                                                "; allowed: what the machine can hold");
    }
  }

 private:
  static int default_threads() {
    const int threads = omp_get_max_threads();
    return threads < static_cast<int>(core::kMaxThreads) ? threads : static_cast<int>(core::kMaxThreads);
  }

  std::string_view name_;
  std::string_view description_;
  const cpu::KernelTable& kernels_;
};

}  // namespace

const Engine& cpu_portable_engine() {
  static const CpuEngine engine("cpu-portable", "plain C++ for every x86-64-v2 processor, OpenMP",
                                cpu::portable_kernels());
  return engine;
}

const Engine& cpu_engine() {
  static const CpuEngine engine("cpu", "the best CPU kernels for this processor", cpu::portable_kernels());
  return engine;
}

}  // namespace headwater
