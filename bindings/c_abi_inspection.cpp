// The C ABI of headwater.h over the C++ API: what a session holds.

#include <algorithm>
#include <bit>
#include <span>

#include "bindings/c_abi_support.hpp"
#include "headwater/detail/option_table.hpp"
#include "headwater/testing/sabotage.hpp"

namespace {

using namespace headwater::c_abi;  // the helpers of this folder

/// Sizes of a layer of the session (LAYER-1).
headwater::Shape layer_shape(const headwater::Session& session, std::int64_t layer) {
  check_range(layer, 0, session.shape().n_layer - 1, "layer");
  return session.options().shape_of(session.shape(), layer);
}

std::span<float> row_of(float* row, std::int64_t width, std::int64_t expected) {
  needed(row, "row");
  check_range(width, expected, expected, "width");
  return {row, static_cast<std::size_t>(width)};
}

}  // namespace

headwater_status headwater_session_state(const headwater_session* session, int32_t* state) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    *needed(state, "state") = static_cast<std::int32_t>(open.state());
  });
}

headwater_status headwater_session_failed(const headwater_session* session, int32_t* failed) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    *needed(failed, "failed") = open.failed() ? 1 : 0;
  });
}

headwater_status headwater_session_tokens(const headwater_session* session, int64_t* tokens) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    *needed(tokens, "tokens") = open.tokens();
  });
}

headwater_status headwater_session_options(const headwater_session* session,
                                           headwater_effective_options* options, size_t struct_size) {
  return guarded([&] {
    const headwater::EffectiveOptions& effective = session_of(session).options();
    headwater_effective_options filled{};
    headwater::detail::for_each_option(
        [&](const auto& option) { filled.*option.c_effective = effective.*option.effective; });
    filled.scale = effective.scale;
    filled.softcap = effective.softcap;
    filled.sparse = effective.sparse ? 1 : 0;
    filled.score_type = static_cast<std::int32_t>(effective.score_type);
    filled.schedule = static_cast<std::int32_t>(effective.schedule);
    filled.threads = effective.threads;
    filled.select = static_cast<std::int32_t>(effective.select);
    filled.kv_owner = static_cast<std::int32_t>(effective.kv_owner);
    write_struct(options, struct_size, kEffectiveOptionsSize1, filled, "options");
  });
}

headwater_status headwater_warning_count(const headwater_session* session, int64_t* count) {
  return guarded([&] {
    const auto& warnings = session_of(session).options().warnings;
    *needed(count, "count") = static_cast<std::int64_t>(warnings.size());
  });
}

headwater_status headwater_warning(const headwater_session* session, int64_t index, const char** text) {
  return guarded([&] {
    const auto& warnings = session_of(session).options().warnings;
    needed(text, "text");
    check_range(index, 0, static_cast<std::int64_t>(warnings.size()) - 1, "warning index");
    *text = warnings[static_cast<std::size_t>(index)].c_str();
  });
}

headwater_status headwater_session_memory_bytes(const headwater_session* session,
                                                headwater_memory_bytes* bytes, size_t struct_size) {
  return guarded([&] {
    write_struct(bytes, struct_size, kMemoryBytesSize1, bytes_of(session_of(session).memory_bytes()),
                 "bytes");
  });
}

headwater_status headwater_session_stage_seconds(const headwater_session* session,
                                                 headwater_stage_seconds* seconds, size_t struct_size) {
  return guarded([&] {
    const headwater_stage_seconds filled{session_of(session).stage_seconds().selection};
    write_struct(seconds, struct_size, kStageSecondsSize1, filled, "seconds");
  });
}

headwater_status headwater_plan_count(const headwater_session* session, int64_t* count) {
  return guarded([&] {
    const auto plan = session_of(session).plan();
    *needed(count, "count") = static_cast<std::int64_t>(plan.size());
  });
}

headwater_status headwater_plan_chunk(const headwater_session* session, int64_t index,
                                      headwater_chunk* chunk) {
  return guarded([&] {
    const auto plan = session_of(session).plan();
    needed(chunk, "chunk");
    check_range(index, 0, static_cast<std::int64_t>(plan.size()) - 1, "chunk index");
    if (HEADWATER_SABOTAGE("bindings.plan.index_in_8_bits")) index &= 0xFF;
    *chunk = chunk_of(plan[static_cast<std::size_t>(index)]);
  });
}

headwater_status headwater_session_chunk_count(const headwater_session* session, int64_t* count) {
  return guarded([&] {
    const auto chunks = session_of(session).chunks();
    *needed(count, "count") = static_cast<std::int64_t>(chunks.size());
  });
}

headwater_status headwater_session_chunk(const headwater_session* session, int64_t index,
                                         headwater_chunk* chunk, int64_t* memory_count) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    const auto chunks = open.chunks();
    needed(chunk, "chunk");
    needed(memory_count, "memory_count");
    check_range(index, 0, static_cast<std::int64_t>(chunks.size()) - 1, "chunk index");
    *chunk = chunk_of(chunks[static_cast<std::size_t>(index)]);
    *memory_count = open.memory_count(chunks[static_cast<std::size_t>(index)]);
  });
}

headwater_status headwater_scores(const headwater_session* session, int64_t layer,
                                  headwater_score_view* view) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    needed(view, "view");
    const headwater::ScoreView scores = open.scores(layer);
    *view = {scores.data, scores.head_stride, static_cast<std::int32_t>(scores.type), 0};
  });
}

headwater_status headwater_copy_scores(const headwater_session* session, int64_t layer, int64_t head,
                                       int64_t first, int64_t count, float* scores) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    const headwater::ScoreView view = open.scores(layer);
    check_range(head, 0, open.shape().n_head - 1, "head");
    check_range(first, 0, open.tokens(), "first");
    check_range(count, 0, open.tokens() - first, "count");
    if (count == 0) return;
    needed(scores, "scores");
    std::int64_t begin = head * view.head_stride + first;
    if (HEADWATER_SABOTAGE("bindings.scores.offset_in_16_bits")) begin &= 0xFFFF;
    if (view.type == headwater::ScoreType::f32) {
      std::copy_n(static_cast<const float*>(view.data) + begin, count, scores);
      return;
    }
    // A BF16 value is the upper half of the float that it widens to.
    std::transform(static_cast<const std::uint16_t*>(view.data) + begin,
                   static_cast<const std::uint16_t*>(view.data) + begin + count, scores,
                   [](std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); });
  });
}

headwater_status headwater_memory(const headwater_session* session, int64_t layer,
                                  headwater_memory_view* view) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    needed(view, "view");
    const headwater::MemoryView memory = open.memory(layer);
    *view = {memory.data, memory.head_stride, memory.width, memory.count};
  });
}

headwater_status headwater_read_key(const headwater_session* session, int64_t layer, int64_t head_kv,
                                    int64_t position, float* row, int64_t width) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    if (HEADWATER_SABOTAGE("bindings.key.position_in_16_bits")) position &= 0xFFFF;
    open.read_key(layer, head_kv, position, row_of(row, width, layer_shape(open, layer).d_head));
  });
}

headwater_status headwater_read_value(const headwater_session* session, int64_t layer, int64_t head_kv,
                                      int64_t position, float* row, int64_t width) {
  return guarded([&] {
    const headwater::Session& open = session_of(session);
    open.read_value(layer, head_kv, position, row_of(row, width, layer_shape(open, layer).d_value));
  });
}
