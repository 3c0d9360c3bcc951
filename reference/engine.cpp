#include "reference/engine.hpp"

#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "headwater/error.hpp"
#include "reference/session.hpp"

namespace headwater {
namespace {

class ReferenceEngine final : public Engine {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }
  [[nodiscard]] std::string_view isa() const override { return "scalar"; }
  [[nodiscard]] std::string_view description() const override {
    return "the spec in plain scalar double arithmetic on one thread: the oracle";
  }
  [[nodiscard]] std::string unavailable_because() const override { return {}; }
  [[nodiscard]] Claims claims() const override {
    Claims claims;
    claims.bitwise_threads = true;
    claims.bitwise_runs = true;
    claims.bitwise_schedules = true;
    claims.no_allocation = false;
    claims.double_arithmetic = true;
    claims.abort = true;
    claims.truncate = true;
    claims.interrupt = true;
    claims.lse = true;
    claims.fork = true;
    claims.save = true;
    claims.layers = true;
    claims.stored_rows = true;
    claims.rows_alone = true;
    claims.kv_bits = true;
    return claims;
  }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    if (options.allocator.allocate != nullptr) {  // HOST-2
      throw Error(ErrorCode::unsupported,
                  "allocator is given; allowed: none: engine reference has memory of its own");
    }
    try {
      return std::make_unique<reference::ReferenceSession>(shape, options);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory,
                  "open(): no memory for capacity = " + std::to_string(shape.capacity) + " tokens in " +
                      std::to_string(shape.n_layer) + " layers");
    }
  }
};

}  // namespace

const Engine& reference_engine() {
  static const ReferenceEngine engine;
  return engine;
}

}  // namespace headwater
