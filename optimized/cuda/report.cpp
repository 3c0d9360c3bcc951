#include <algorithm>

#include "cuda/cuda_session.hpp"

/// What an observer is shown: copies in host memory, made only while somebody observes.
namespace headwater::cuda {

namespace {

constexpr std::int64_t kFloat = sizeof(float);

}  // namespace

void CudaSession::report_sparse(const Window& window, const Chunk& chunk) {
  const std::int64_t heads = shape().n_head;
  const std::int64_t n = chunk.end - chunk.begin;
  const std::int64_t count = chunk.begin > 0 ? set_states_[static_cast<std::size_t>(window.layer)].count : 0;
  device_->copy_rows(stream_, {shown_intra_.data(), window_rows_ * kFloat},
                     {colsum_intra_ + (chunk.begin - window.begin), window_rows_ * kFloat}, n * kFloat, heads,
                     Direction::device_to_host);
  device_->copy_rows(stream_, {shown_lse_.data(), window_rows_ * kFloat}, {lse_, window_rows_ * kFloat},
                     n * kFloat, heads, Direction::device_to_host);
  std::fill_n(shown_inter_.data(), shown_inter_.size(), 0.0f);
  if (count > 0) {
    device_->copy_rows(stream_, {shown_inter_.data(), set_width_ * kFloat},
                       {colsum_inter_, set_width_ * kFloat}, count * kFloat, heads,
                       Direction::device_to_host);
  }
  device_->synchronize(stream_);

  ChunkRecord record;
  record.layer = window.layer;
  record.chunk = chunk;
  record.memory_count = count;
  record.memory_stride = set_width_;
  record.memory = memory(window.layer).data;
  record.colsum_inter = shown_inter_.data();
  record.row_stride = window_rows_;
  record.colsum_intra = shown_intra_.data();
  record.lse = shown_lse_.data();
  observer()(record);
}

void CudaSession::keep_lse(const Window& window, const Chunk& chunk) {
  device_->copy_rows(stream_, {shown_lse_.data() + (window.begin - chunk.begin), shape().capacity * kFloat},
                     {lse_, window_rows_ * kFloat}, (window.end - window.begin) * kFloat, shape().n_head,
                     Direction::device_to_host);
}

void CudaSession::report_dense(std::int64_t layer, const Chunk& chunk) {
  ChunkRecord record;
  record.layer = layer;
  record.chunk = chunk;
  record.memory_stride = set_width_;
  record.row_stride = shape().capacity;
  record.lse = shown_lse_.data();
  observer()(record);
}

}  // namespace headwater::cuda
