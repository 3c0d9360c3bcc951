// The check before every measurement finds a faulty engine, and passes every right one.

#include "cli/commands/bench/checked_run.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "conformance/case.hpp"
#include "conformance/faulty_engine.hpp"

namespace headwater::bench {

namespace {

using conformance::Fault;

Shape small_shape(DType type) {
  Shape shape;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 12;
  shape.d_value = 7;
  shape.capacity = 100;
  shape.kv_type = type;
  return shape;
}

Options small_options(bool dense) {
  Options options;
  options.batch = 32;
  options.chunk = 16;
  options.local = 3;
  options.heavy = 4;
  options.threads = 2;
  options.dense = dense;
  return options;
}

Checked checked(const Engine& engine, DType type, bool dense, std::int64_t decoded) {
  Workload workload(small_shape(type), 11);
  AttentionRun run(engine, workload, small_options(dense));
  return run.check(workload.shape().capacity - decoded, decoded, 5);
}

TEST(CheckedRun, PassesEveryEngineThatIsRight) {
  for (const Engine* engine : engines()) {
    if (!engine->unavailable_because().empty()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(std::string(engine->name()) + " " + dtype_name(type));
      const Checked sparse = checked(*engine, type, false, 0);
      EXPECT_EQ(sparse.rows, 24);
      EXPECT_GT(sparse.column_sums, 0);
      EXPECT_EQ(sparse.heads_replayed, 4);
      EXPECT_GT(sparse.worst_row, 0.0);
      EXPECT_LE(sparse.worst_row, 1.0);
      const Checked dense = checked(*engine, type, true, 3);
      EXPECT_EQ(dense.rows, 24);
      EXPECT_EQ(dense.column_sums, 0);
      EXPECT_EQ(dense.heads_replayed, 0);
    }
  }
}

TEST(CheckedRun, FindsEveryWrongEngine) {
  for (const Fault fault : {Fault::adds_to_outputs, Fault::scales_outputs, Fault::swaps_heads,
                            Fault::drops_newest_key, Fault::shifts_lse, Fault::column_sum_missing_query,
                            Fault::stale_sets, Fault::scores_off_by_one, Fault::leaves_outputs}) {
    const auto wrong = conformance::faulty_engine(engine("cpu-portable"), fault);
    EXPECT_THROW(static_cast<void>(checked(*wrong, DType::f32, false, 0)), conformance::Violation)
        << conformance::fault_name(fault);
  }
}

TEST(CheckedRun, FindsWrongDecodeAndDenseOutputs) {
  for (const Fault fault : {Fault::adds_to_outputs, Fault::drops_newest_key, Fault::leaves_outputs}) {
    const auto wrong = conformance::faulty_engine(engine("cpu-portable"), fault);
    EXPECT_THROW(static_cast<void>(checked(*wrong, DType::f32, true, 0)), conformance::Violation)
        << conformance::fault_name(fault);
    EXPECT_THROW(static_cast<void>(checked(*wrong, DType::f32, true, 1)), conformance::Violation)
        << conformance::fault_name(fault);
  }
}

TEST(CheckedRun, DecodeGoesOnWhereThePrefillEnded) {
  Workload workload(small_shape(DType::bf16), 3);
  AttentionRun run(engine("cpu-portable"), workload, small_options(false));
  EXPECT_GT(run.prefill(90).wall, 0.0);
  EXPECT_EQ(run.session().tokens(), 90);
  EXPECT_GT(run.decode().wall, 0.0);
  EXPECT_EQ(run.session().tokens(), 91);
  EXPECT_EQ(run.session().state(), SessionState::decoding);
}

TEST(Workload, SameSeedSameRows) {
  const Shape shape = small_shape(DType::f16);
  const Workload a(shape, 1);
  const Workload b(shape, 1);
  const Workload c(shape, 2);
  const auto bytes = static_cast<std::size_t>(shape.capacity * shape.n_head * shape.d_head) * 2;
  EXPECT_EQ(std::memcmp(a.q().data, b.q().data, bytes), 0);
  EXPECT_NE(std::memcmp(a.q().data, c.q().data, bytes), 0);
  EXPECT_EQ(a.k(5).data, static_cast<const std::byte*>(a.k().data) + std::size_t{5} * 2 * 12 * 2);
}

TEST(Workload, CountsBytesAndFlops) {
  const Shape shape = small_shape(DType::bf16);
  // q 100 x 4 x 12 and k 100 x 2 x 12 and v 100 x 2 x 7 in 2 bytes, out 100 x 4 x 7 in 4 bytes.
  EXPECT_EQ(Workload::bytes(shape), 2.0 * (4800 + 2400 + 1400) + 4.0 * 2800);
  EXPECT_EQ(useful_flops(shape, 10.0), 2.0 * (12 + 7) * 4 * 10);
}

}  // namespace

}  // namespace headwater::bench
