#include "cpu/workers.hpp"

#include <xmmintrin.h>

#include <string>
#include <utility>

#include "headwater/error.hpp"

namespace headwater::cpu {

namespace {

/// Gives a thread the rounding and the treatment of subnormals of the calling thread, for as long as this lives: bits must
/// not depend on whose thread computes them (NUM-3).
class FloatControls {
 public:
  explicit FloatControls(unsigned wanted) : own_(_mm_getcsr()) { _mm_setcsr(wanted); }
  ~FloatControls() { _mm_setcsr(own_); }
  FloatControls(const FloatControls&) = delete;
  FloatControls& operator=(const FloatControls&) = delete;

 private:
  unsigned own_;
};

/// What a host did with an index that HOST-1 does not allow.
Error host_error(const std::string& what, int threads) {
  return {ErrorCode::internal,
          "parallel_for " + what + "; allowed: each index 0 .. " + std::to_string(threads - 1) + " once"};
}

}  // namespace

Workers::Workers(int threads, ParallelFor host, void* context)
    : threads_(threads),
      host_(host),
      context_(context),
      own_(host ? nullptr : std::make_unique<OwnThreads>(threads)),
      indexes_(host ? static_cast<std::size_t>(threads) : 0) {}

void Workers::start() {
  if (host_) return;
  each(threads_, [](const Task&) {});
}

void Workers::enter_layer(std::int64_t layer, const Interrupt& interrupt) {
  layer_ = layer;
  interrupt_ = interrupt ? &interrupt : nullptr;
  caller_ = std::this_thread::get_id();
}

void Workers::run(const Region& region) {
  if (region.n <= 0) return;
  ask();
  float_controls_ = _mm_getcsr();
  stopped_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  if (host_) {
    run_on_host(region);
  } else {
    own_->run(
        [](const void* argument, int thread, int threads) {
          const Region& own = *static_cast<const Region*>(argument);
          own.workers.run_share(own, thread, threads);
        },
        &region);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Workers::run_on_host(const Region& region) {
  for (std::atomic<bool>& index : indexes_) index.store(false, std::memory_order_relaxed);
  const auto run_index = [](void* argument, std::int64_t index) {
    const Region& own = *static_cast<const Region*>(argument);
    Workers& workers = own.workers;
    if (index < 0 || index >= workers.threads_) {
      workers.stop(
          std::make_exception_ptr(host_error("ran index " + std::to_string(index), workers.threads_)));
      return;
    }
    const bool repeated = workers.indexes_[static_cast<std::size_t>(index)].exchange(true);
    if (repeated && !HEADWATER_SABOTAGE("cpu.workers.repeated_index_unseen")) {
      workers.stop(std::make_exception_ptr(
          host_error("ran index " + std::to_string(index) + " twice", workers.threads_)));
      return;
    }
    workers.run_share(own, static_cast<int>(index), workers.threads_);
  };
  host_(context_, threads_, run_index, const_cast<Region*>(&region));
  if (error_) return;
  const int checked =
      HEADWATER_SABOTAGE("cpu.workers.lost_index_beyond_8") ? std::min(threads_, 8) : threads_;
  for (int index = 0; index < checked; ++index) {
    if (indexes_[static_cast<std::size_t>(index)].load(std::memory_order_relaxed)) continue;
    throw host_error("returned without index " + std::to_string(index), threads_);
  }
}

void Workers::run_share(const Region& region, int thread, int threads) {
  const bool own = HEADWATER_SABOTAGE("cpu.workers.float_controls_of_the_thread");
  const FloatControls controls(own ? _mm_getcsr() : float_controls_);
  try {
    region.share(region, thread, threads);
  } catch (...) {
    stop(std::current_exception());
  }
}

void Workers::stop(std::exception_ptr error) {
  if (!stopped_.exchange(true)) error_ = std::move(error);
}

void Workers::ask() const {
  if (!interrupt_ || !*interrupt_ || !(*interrupt_)()) return;
  throw Error(ErrorCode::interrupted, "attend() of layer " + std::to_string(layer_) +
                                          " was interrupted; allowed: abort() or reset()");
}

}  // namespace headwater::cpu
