#include "cuda/cuda_session.hpp"

#include <algorithm>
#include <utility>

#include "core/numbers.hpp"
#include "cuda/kernels/store_rows.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

CudaSession::CudaSession(std::unique_ptr<Device> device, const Dispatch& dispatch, const Shape& shape,
                         const Options& wished, const EffectiveOptions& effective, Launching launching,
                         const RowPlace& rows, const Sm90Switch& sm90_switch)
    : SessionBase(shape, effective),
      data_(std::move(device), dispatch, shape, wished, options(), rows),
      sm80_(data_),
      sm90_(data_, sm80_, sm90_switch, !wished.alibi.empty()),
      dense_(data_, sm80_),
      staging_(data_) {
  if (effective.sparse && effective.select == Select::blocks) {
    blocks_.emplace(data_);
  } else if (effective.sparse) {
    sparse_.emplace(data_);
  }
  sm90_.take_memory();
  WindowExtent most = data_.extent();
  if (effective.sparse) most.intra_parts = sm90_.intra_parts();
  launches_.emplace(*data_.device, dispatch, launching, data_.stream, most);
  shown_scores_ = core::Buffer<unsigned char>(
      core::checked_product(shape.n_layer, shape.n_head, shape.capacity, data_.score_bytes));
  shown_row_ = core::Buffer<unsigned char>(std::max(shape.d_head, shape.d_value) * data_.element_bytes);
  data_.bytes.workspace += launches_->bytes() + shown_scores_.bytes() + shown_row_.bytes() + chunk_bytes();
  forget();
  data_.device->synchronize(data_.stream);
}

void CudaSession::forget() {
  data_.device->require_uncaptured(data_.stream);
  if (sparse_) sparse_->forget();
}

ScoreView CudaSession::scores(std::int64_t layer) const {
  require_layer(layer);
  data_.device->require_uncaptured(data_.stream);
  const std::int64_t stored = tokens();  // of an open step nothing may be written yet
  const std::int64_t pitch = shape().capacity * data_.score_bytes;
  unsigned char* shown = shown_scores_.data() + layer * shape().n_head * pitch;
  if (stored > 0) {
    data_.device->copy_rows(data_.stream, {shown, pitch}, {data_.scores(layer), pitch},
                            stored * data_.score_bytes, shape().n_head, Direction::device_to_host);
    data_.device->synchronize(data_.stream);
  }
  return {options().score_type, shown, shape().capacity};
}

MemoryView CudaSession::memory(std::int64_t layer) const {
  require_layer(layer);
  data_.device->require_uncaptured(data_.stream);
  return sparse_ ? sparse_->memory(layer) : MemoryView{};
}

void CudaSession::read_row(const StoredRows& rows, std::int64_t head_kv, std::int64_t position,
                           std::span<float> row, std::int64_t width) const {
  data_.device->require_uncaptured(data_.stream);
  const std::int64_t index = head_kv * rows.head_stride + position * rows.width;
  data_.device->copy(data_.stream, shown_row_.data(),
                     static_cast<const unsigned char*>(rows.data.raw()) + index * data_.element_bytes,
                     width * data_.element_bytes, Direction::device_to_host);
  data_.device->synchronize(data_.stream);
  core::widen(shown_row_.data(), rows.type, width, row.data());
}

void CudaSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                           std::span<float> row) const {
  require_row(layer, head_kv, position);
  require_width(std::ssize(row), shape().d_head);
  read_row(data_.keys(layer), head_kv, position, row, shape().d_head);
}

void CudaSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                             std::span<float> row) const {
  require_row(layer, head_kv, position);
  require_width(std::ssize(row), shape().d_value);
  read_row(data_.values(layer), head_kv, position, row, shape().d_value);
}

void CudaSession::check_rows(const headwater::SequenceCall& call) const {
  if (call.lse.data != nullptr) refuse("lse");
  data_.device->require_uncaptured(data_.stream);
  staging_.check({call.q, call.k, call.v, call.out});
}

std::size_t CudaSession::window_chunks(std::size_t first) const {
  const std::span<const Chunk> chunks = plan();
  std::size_t last = first + 1;
  // Only the last chunk of a batch is shorter, so chunks of a window are cut at multiples of S.
  while (last < chunks.size() && chunks[last].end - chunks[first].begin <= data_.window_rows &&
         chunks[last - 1].end - chunks[last - 1].begin == options().chunk) {
    ++last;
  }
  return last - first;
}

void CudaSession::run_layer(const headwater::SequenceCall& asked) {
  std::span<const Chunk> chunks = plan();
  const std::int64_t base = chunks.front().begin;
  const std::int64_t end = chunks.back().end;
  const Chunk whole{base, end, ChunkMode::dense};
  const std::int64_t layer = asked.layer;
  const bool alone = asked.rows_alone();  // DEC-2
  bool sparse = chunks.front().mode == ChunkMode::sparse;
  const bool last_left_out =
      HEADWATER_SABOTAGE("cuda.dense_layer.last_left_out") && layer + 1 == shape().n_layer;
  if (sparse && options().dense_layer(layer) && !last_left_out) {  // STATE-7
    sparse = false;
    chunks = {&whole, 1};
  }
  // Tensor cores where both rows of a product have the same 16-bit type.
  const bool tensor = asked.q.type == shape().kv_type && asked.q.type != DType::f32;
  KernelPath* path = &sm80_;
  if (tensor && sm90_.taken()) path = &sm90_;
  const Staging::Call call{asked.q, asked.k, asked.v, asked.out};
  staging_.begin_call();
  std::size_t first = 0;  // chunk of the next window
  for (std::int64_t begin = base; begin < end;) {
    const std::span<const Chunk> held = chunks.subspan(first, sparse ? window_chunks(first) : 1);
    const std::int64_t window_end = sparse ? held.back().end : std::min(end, begin + data_.window_rows);
    const std::int64_t n = window_end - begin;
    const Staging::Placed rows = staging_.begin_window(call, begin - base, n);
    const Window window{*launches_, *path,  layer,    begin,
                        window_end, rows.q, rows.out, tensor ? asked.q.type : DType::f32,
                        observer()};
    launches_->begin(sparse ? WindowLaunches::Order::sparse : WindowLaunches::Order::dense,
                     window.observed());
    store_rows(window, rows.k, rows.v);
    if (sparse) launches_->after_store();
    if (blocks_) blocks_->summarise(window);
    if (sparse) {
      blocks_ ? blocks_->run(window, held) : sparse_->run(window, held);
      first += held.size();
    } else if (!alone) {
      dense_.run(window, held.front());
    }
    launches_->end();
    if (!sparse && !alone) dense_.keep_lse(window, held.front());
    staging_.end_window(call, begin - base, n);
    begin = window_end;
  }
  staging_.end_call(call);
  if (!sparse && !alone) dense_.report(layer, chunks.front(), observer());
}

void CudaSession::store_rows(const Window& window, const InputRows& k, const InputRows& v) {
  const std::int64_t n = window.end - window.begin;
  StoreRowsParams params{};
  params.k = k;
  params.v = v;
  params.keys = const_cast<void*>(data_.keys(window.layer).data.raw());
  params.values = const_cast<void*>(data_.values(window.layer).data.raw());
  params.scores = data_.scores(window.layer);
  params.score_bytes = static_cast<int>(data_.score_bytes);
  params.type = shape().kv_type;
  params.d = static_cast<int>(shape().d_head);
  params.dv = static_cast<int>(shape().d_value);
  params.key_width = static_cast<int>(data_.key_width);
  params.value_width = static_cast<int>(data_.value_width);
  params.heads = static_cast<int>(shape().n_head);
  params.heads_kv = static_cast<int>(shape().n_head_kv);
  params.capacity = shape().capacity;
  params.position = window.begin;
  params.n = static_cast<int>(n);
  launches_->launch(WindowLaunches::store(), data_.dispatch.only(Stage::store_rows),
                    grid(2 * shape().n_head_kv + shape().n_head, pieces(n, kStoreTokens), 1), params);
}

}  // namespace headwater::cuda
