#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "core/config.hpp"
#include "cpu/cpu_session.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/own_threads.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater {

namespace {

/// One engine per table of kernels.
class CpuEngine final : public Engine {
 public:
  CpuEngine(std::string_view name, std::string_view description, const cpu::Variant& variant)
      : name_(name), description_(description), variant_(variant) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string_view isa() const override {
    return variant_.bf16 ? variant_.bf16->isa : variant_.kernels->isa;
  }
  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] std::string unavailable_because() const override { return variant_.missing(); }
  [[nodiscard]] Claims claims() const override {
    Claims claims;
    claims.bitwise_threads = true;
    claims.bitwise_runs = true;
    claims.bitwise_schedules = true;
    claims.no_allocation = !cpu::OwnThreads::allocate();
    claims.interrupt = true;
    claims.lse = true;
    claims.host_threads = true;
    claims.fork = true;
    claims.layers = true;
    claims.stored_rows = true;
    claims.rows_alone = true;
    claims.bf16_weights = variant_.bf16 != nullptr;
    claims.abort = true;
    claims.truncate = true;
    claims.save = true;
    claims.estimate = true;
    claims.host_memory = true;
    claims.kv_bits = true;
    return claims;
  }

  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    return opened(shape, options, core::Memory(options.allocator),
                  [](std::unique_ptr<cpu::CpuSession> session) { return session; });
  }

  // A session whose memory is counted and not taken: it is closed before anything could look at a row.
  [[nodiscard]] MemoryEstimate estimate(const Shape& shape, const Options& options) const override {
    std::int64_t total = 0;
    return opened(shape, options, core::Memory::counted_in(total),
                  [](const std::unique_ptr<cpu::CpuSession>& session) { return session->estimate(); });
  }

 private:
  /// What `use` makes of a session in this memory.
  template <class Use>
  [[nodiscard]] std::invoke_result_t<Use, std::unique_ptr<cpu::CpuSession>> opened(const Shape& shape,
                                                                                   const Options& options,
                                                                                   const core::Memory& memory,
                                                                                   const Use& use) const {
    const std::string reason = unavailable_because();
    if (!reason.empty()) throw Error(ErrorCode::engine_unavailable, std::string(name_) + ": " + reason);
    try {
      // They are asked only where its answer counts (HOST-1).
      const EffectiveOptions effective =
          core::resolve(shape, options, options.threads == 0 ? default_threads() : 1);
      core::require_no_device(options, name_);
      const core::MemoryScope scope(memory);
      return use(std::make_unique<cpu::CpuSession>(variant_, shape, options, effective));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory, "no memory for a session of capacity " +
                                                std::to_string(shape.capacity) +
                                                "; allowed: what the machine can hold");
    }
  }

  static int default_threads() {
    return std::min(cpu::OwnThreads::default_count(), static_cast<int>(core::kMaxThreads));
  }

  std::string_view name_;
  std::string_view description_;
  const cpu::Variant& variant_;
};

template <std::size_t Index>
const Engine& variant_engine() {
  static const cpu::Variant& variant = cpu::variants()[Index];
  static const CpuEngine engine(variant.engine, variant.description, variant);
  return engine;
}

}  // namespace

const Engine& cpu_portable_engine() { return variant_engine<0>(); }
const Engine& cpu_avx2_engine() { return variant_engine<1>(); }
const Engine& cpu_avx512_engine() { return variant_engine<2>(); }
const Engine& cpu_avx512bf16_engine() { return variant_engine<3>(); }
const Engine& cpu_amx_engine() { return variant_engine<4>(); }
#ifdef HEADWATER_TESTING
const Engine& cpu_amx_emulated_engine() { return variant_engine<5>(); }
#endif

const Engine& cpu_engine() {
  const cpu::Preference& preference = cpu::preference();
  static const std::string description = "here " + std::string(preference.engine) + " for " +
                                         std::string(preference.rows) +
                                         " rows: " + std::string(preference.reason);
  static const CpuEngine engine("cpu", description, cpu::preferred_variant());
  return engine;
}

}  // namespace headwater
