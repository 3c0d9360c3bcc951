#include "cuda/pass/dense.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

DensePass::DensePass(SessionData& data, Sm80Path& sm80)
    : data_(data),
      sm80_(sm80),
      decode_tokens_(std::clamp<std::int64_t>(kDecodeRows / data.group, 1, data.shape.capacity)) {
  const std::int64_t splits = std::min(kMaxSplits, pieces(data.shape.capacity, kSplitKeys));
  if (splits <= 1) return;  // a context of one split needs no parts
  const std::int64_t rows = core::checked_product(splits, data.shape.n_head, decode_tokens_);
  auto* next = data.take<float>(core::checked_product(rows, 3 + data.shape.d_value), "states of splits");
  parts_.out =
      data.part(next, rows * data.shape.d_value, "outputs of splits");  // first: aligned as allocated
  parts_.max = data.part(next, rows, "maxima of splits");
  parts_.sum = data.part(next, rows, "sums of splits");
  parts_.rounded = data.part(next, rows, "divisors of splits");
  parts_.stride = decode_tokens_;
}

void DensePass::run(const Window& window, const Chunk& chunk) {
  if (chunk.mode != ChunkMode::decode) {
    window.path.dense(window);
  } else if (chunk.end - chunk.begin <= decode_tokens_) {
    decode(window);
  } else {
    sm80_.dense(window);
  }
}

void DensePass::decode(const Window& window) {
  const Shape& shape = data_.shape;
  const std::int64_t n = window.end - window.begin;
  ForwardParams params = sm80_.forward_params(window, window.begin, window.end);
  params.at.range = KeyRange::all;
  params.rows_per_token = static_cast<int>(data_.group);
  // Equal splits of whole tiles: a function of the context alone.
  const std::int64_t split_keys =
      pieces(std::max(pieces(window.end, kMaxSplits), kSplitKeys), kSliceWidth) * kSliceWidth;
  const std::int64_t splits = pieces(window.end, split_keys);
  if (splits == 1) {
    sm80_.launch_forward(window, WindowLaunches::dense_forward(), params, 1, n * data_.group);
    return;
  }
  HEADWATER_MARK("cuda.decode.split");
  params.split_keys = split_keys;
  params.state = parts_;
  params.state.base = window.begin;
  params.lse = nullptr;
  sm80_.launch_forward(window, WindowLaunches::dense_forward(), params, splits, n * data_.group);

  CombineParams combine{};
  combine.parts = params.state;
  combine.splits = static_cast<int>(splits);
  combine.heads = static_cast<int>(shape.n_head);
  combine.dv = static_cast<int>(shape.d_value);
  combine.base = window.begin;
  combine.begin = window.begin;
  combine.end = window.end;
  combine.out = window.out;
  combine.lse = window.observed() ? data_.lse : nullptr;
  combine.lse_stride = data_.window_rows;
  window.launches.launch(WindowLaunches::combine(), data_.dispatch.only(Stage::combine),
                         grid(shape.n_head, n, 1), combine);
}

void DensePass::keep_lse(const Window& window, const Chunk& chunk) const {
  if (!window.observed()) return;
  data_.device->copy_rows(
      data_.stream, {data_.shown_lse.data() + (window.begin - chunk.begin), data_.shape.capacity * kFloat},
      {data_.lse, data_.window_rows * kFloat}, (window.end - window.begin) * kFloat, data_.shape.n_head,
      Direction::device_to_host);
}

void DensePass::report(std::int64_t layer, const Chunk& chunk, const Observer& observer) const {
  if (!observer) return;
  ChunkRecord record;
  record.layer = layer;
  record.chunk = chunk;
  record.memory_stride = data_.set_width;
  record.row_stride = data_.shape.capacity;
  record.lse = data_.shown_lse.data();
  observer(record);
}

}  // namespace headwater::cuda
