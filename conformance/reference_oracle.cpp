#include "conformance/reference_oracle.hpp"

#include <string>

#include "reference/arguments.hpp"
#include "reference/dense.hpp"
#include "reference/fusion.hpp"
#include "reference/inter.hpp"
#include "reference/intra.hpp"

namespace headwater::conformance {
namespace {

using reference::LogitRule;
using reference::Matrix;
using reference::PassResult;
using reference::reject;

void check_arguments(const LayerRows& layer, const Chunk& chunk, std::int64_t query_head,
                     std::span<const std::int32_t> memory) {
  if (chunk.begin < 0) reject("chunk.begin", std::to_string(chunk.begin), "at least 0");
  if (chunk.end <= chunk.begin) reject("chunk.end", std::to_string(chunk.end), "above chunk.begin");
  if (query_head < 0 || query_head >= layer.n_head)
    reject("query_head", std::to_string(query_head), "0 to n_head - 1");
  for (const std::int32_t position : memory) {
    if (position < 0 || position >= chunk.begin)
      reject("memory", std::to_string(position), "0 to chunk.begin - 1");
  }
}

}  // namespace

OracleHead oracle_head(const LayerRows& layer, const LogitRule& rule, const Chunk& chunk,
                       std::int64_t query_head, std::span<const std::int32_t> memory) {
  check_arguments(layer, chunk, query_head, memory);
  const bool sparse = chunk.mode == ChunkMode::sparse;
  const std::int64_t g = reference::key_value_head(query_head, layer.n_head, layer.n_head_kv);
  const std::int64_t first_key = sparse ? chunk.begin : 0;
  const Matrix q = reference::read_rows(layer.q, chunk.begin, chunk.end, query_head, layer.d_head);
  const Matrix k = reference::read_rows(layer.k, first_key, chunk.end, g, layer.d_head);
  const Matrix v = reference::read_rows(layer.v, first_key, chunk.end, g, layer.d_value);

  OracleHead head;
  if (sparse) {
    PassResult intra = reference::intra_pass(rule, chunk.begin, q, k, v);
    head.intra = intra.rows;
    head.colsum_intra = intra.column_sums;
  } else {
    head.intra = reference::dense_attention(rule, chunk.begin, q, k, v);
  }
  const PassResult inter = reference::inter_pass(rule, chunk.begin, q, memory,
                                                 reference::gather_rows(layer.k, memory, g, layer.d_head),
                                                 reference::gather_rows(layer.v, memory, g, layer.d_value));
  head.inter = inter.rows;
  head.colsum_inter = inter.column_sums;
  for (std::size_t r = 0; r < head.intra.size(); ++r) {
    head.output.push_back(reference::fuse(head.intra[r], head.inter[r]));
    head.lse.push_back(reference::log_sum_exp(head.output.back()));
  }
  return head;
}

}  // namespace headwater::conformance
