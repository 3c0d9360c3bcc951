#include "conformance/other_ways.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/placed.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {

std::vector<std::vector<float>> stored_step(Random& random, Session& session, const Problem& problem,
                                            const Step& step, bool queries) {
  const std::int64_t first = session.tokens();
  const std::int64_t tokens = first + step.n;
  const Shape& shape = problem.shape;
  // The first call beyond 2^16 rows by a table, the others in one piece.
  const bool far = tokens > 65536;
  const bool paged = far ? first < 65536 : random.chance(0.7);
  const std::int64_t page_rows = paged ? random.pick(std::vector<std::int64_t>{1, 7, 16, 300}) : tokens;
  const std::int64_t used = (tokens + page_rows - 1) / page_rows;
  std::vector<std::int32_t> table(static_cast<std::size_t>(used + (paged ? 2 : 0)));
  std::iota(table.begin(), table.end(), 0);
  for (std::size_t i = table.size(); paged && i > 1; --i)
    std::swap(table[i - 1],
              table[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
  std::vector<std::vector<float>> outs;
  session.begin(step);
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
    const auto place = [&](const Tensor& from) {
      Tensor to(shape.kv_type, std::ssize(table) * page_rows, from.heads, from.width);
      std::fill(to.values.begin(), to.values.end(), std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t at = table[static_cast<std::size_t>(t / page_rows)] * page_rows + t % page_rows;
        std::copy_n(from.row(t, 0), from.heads * from.width, to.row(at, 0));
      }
      return to;
    };
    // Keys may lie together where values do not.
    const auto placement = [&] {
      if (far && !paged) return Placement::token_major;
      return random.pick(std::vector{Placement::token_major, Placement::strided, Placement::head_major});
    };
    const Placed k(placement(), place(input.k), 0, std::ssize(table) * page_rows);
    const Placed v(placement(), place(input.v), 0, std::ssize(table) * page_rows);
    const Placed q(Placement::token_major, input.q, first, step.n);
    Placed out(Placement::token_major, problem.out_type, step.n, shape.n_head,
               problem.layer_shape(layer).d_value);
    StoredRows rows;
    rows.keys = k.rows().data, rows.values = v.rows().data;
    rows.rows = tokens;
    rows.key_row_stride = k.rows().row_stride, rows.key_head_stride = k.rows().head_stride;
    rows.value_row_stride = v.rows().row_stride, rows.value_head_stride = v.rows().head_stride;
    if (paged) {
      rows.table = table.data(), rows.table_size = used, rows.pages = std::ssize(table),
      rows.page_rows = page_rows;
      rows.key_page_stride = page_rows * rows.key_row_stride;
      rows.value_page_stride = page_rows * rows.value_row_stride;
    }
    if (queries) {
      session.attend_stored(layer, q.rows(), rows, out.mutable_rows());
      outs.push_back(out.take());
    } else {
      session.attend_stored(layer, {}, rows, {});
    }
    k.check("keys of the caller");
    v.check("values of the caller");
  }
  session.end();
  return outs;
}

void store_step(Session& session, const Problem& problem, const Step& step) {
  const std::int64_t first = session.tokens();
  session.begin(step);
  session.set_observer(
      [&](const ChunkRecord&) { throw Violation("DEC-2: a call without queries was observed"); });
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
    const Placed k(Placement::strided, input.k, first, step.n);
    const Placed v(Placement::head_major, input.v, first, step.n);
    session.attend(layer, {}, k.rows(), v.rows(), {});
    k.check("k"), v.check("v");
  }
  session.set_observer({});
  session.end();
}

void require_stored_rows(Random& random, const Engine& engine, Problem problem, const Trace& wanted) {
  problem.options.kv_owner = KvOwner::caller;
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  for (const Step& step : problem.steps) {
    const std::int64_t first = session->tokens();
    const auto outs = stored_step(random, *session, problem, step);
    for (std::size_t layer = 0; layer < outs.size(); ++layer) {
      const std::int64_t row = problem.out_row(static_cast<std::int64_t>(layer));
      if (std::equal(outs[layer].begin(), outs[layer].end(), wanted.layers[layer].out.begin() + first * row))
        continue;
      throw Violation(fmt::format("layer {} at token {}: outputs over rows of the caller are others; {}",
                                  layer, first, problem.describe()));
    }
  }
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const Snapshot left = snapshot(*session, layer);
    const Snapshot& right = wanted.layers[static_cast<std::size_t>(layer)].snapshots.back();
    if (left.scores != right.scores || left.memory != right.memory)
      throw Violation(fmt::format("layer {}: scores or sets over rows of the caller are others; {}", layer,
                                  problem.describe()));
  }
}

void attend_layer_together(const std::vector<Sequence>& sequences, std::int64_t layer) {
  std::vector<std::unique_ptr<Placed>> placed;
  std::vector<Placed*> outs;
  std::vector<SequenceCall> calls;
  std::vector<const Sequence*> called;
  for (const Sequence& one : sequences) {
    if (layer >= one.problem->shape.n_layer) continue;
    const LayerInput& input = one.problem->layers[static_cast<std::size_t>(layer)];
    const auto rows = [&](const Tensor& from) {
      placed.push_back(
          std::make_unique<Placed>(Placement::token_major, from, one.session->tokens(), one.step.n));
      return placed.back()->rows();
    };
    SequenceCall call;
    call.session = one.session;
    call.layer = layer;
    call.q = rows(input.q), call.k = rows(input.k), call.v = rows(input.v);
    placed.push_back(std::make_unique<Placed>(Placement::token_major, one.problem->out_type, one.step.n,
                                              one.problem->shape.n_head,
                                              one.problem->layer_shape(layer).d_value));
    outs.push_back(placed.back().get());
    call.out = outs.back()->mutable_rows();
    calls.push_back(call);
    called.push_back(&one);
  }
  if (calls.empty()) return;
  if (calls.size() > 1) {
    std::vector<SequenceCall> twice = calls;
    twice.back().session = twice.front().session;
    require_code(code_of([&] { attend_together(twice); }), ErrorCode::invalid_argument, "a session twice");
  }
  attend_together(calls);
  for (std::size_t i = 0; i < called.size(); ++i) {
    const Sequence& one = *called[i];
    const std::vector<float> out = outs[i]->take();
    const std::int64_t row = one.problem->out_row(layer);
    const auto from =
        one.wanted->layers[static_cast<std::size_t>(layer)].out.begin() + one.session->tokens() * row;
    if (std::equal(out.begin(), out.end(), from)) continue;
    throw Violation(fmt::format("sequence {} of {}, layer {}: other outputs than by itself; {}", i,
                                called.size(), layer, one.problem->describe()));
  }
}

}  // namespace headwater::conformance
