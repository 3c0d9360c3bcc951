#include "runtime/model/panel_product.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <dnnl.hpp>
#include <utility>
#include <vector>

#include "headwater/detail/processor.hpp"
#include "headwater/error.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/kernels/interleave.hpp"
#include "runtime/model/kernels/tile_kernels.hpp"

namespace headwater::runtime {
namespace {

using Memory = dnnl::memory;
using detail::Feature;

constexpr std::array kAmx = {Feature::avx512f, Feature::amx_tile, Feature::amx_bf16};

const dnnl::engine& processor() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

Memory::data_type type_of(Precision precision) {
  return precision == Precision::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// oneDNN reads the number of OpenMP threads when a primitive is made and when it runs; while one of these exists it
/// reads 1.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// While one of these exists, no signal handler runs on this thread. Where a processor has no AVX-512, oneDNN's code points
/// the stack pointer into a buffer on the heap (jit_avx_gemm_f32, from a depth of 253 on), and a handler's frame would
/// overwrite what lies in front of that. A signal waits for the end of the product, or another thread takes it.
class NoHandlers {
 public:
  NoHandlers() {
    sigset_t held;
    ::sigfillset(&held);
    // What a thread does wrong itself cannot wait: the kernel would end the process without its handler.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      ::sigdelset(&held, fault);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~NoHandlers() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoHandlers(const NoHandlers&) = delete;
  NoHandlers& operator=(const NoHandlers&) = delete;

 private:
  sigset_t before_;
};

// The two majors of oneDNN that this is written for differ in how a product is described and how a layout is queried.

/// A product of row-major F32 results; `source` and `weights` have one type.
dnnl::matmul::primitive_desc matmul_of(const Memory::desc& source, const Memory::desc& weights,
                                       const Memory::desc& result) {
#if DNNL_VERSION_MAJOR >= 3
  return {processor(), source, weights, result, user_scratchpad()};
#else
  return {dnnl::matmul::desc(source, weights, result), user_scratchpad(), processor()};
#endif
}

/// Strides in blocks and blocks in dimensions, as oneDNN has them; `simple`: that, from offset 0, is all of the layout.
struct Blocking {
  bool simple;
  Memory::dims padded, strides, inner_blocks, inner_dimensions;
};

Blocking blocking_of(const Memory::desc& layout) {
#if DNNL_VERSION_MAJOR >= 3
  if (layout.get_format_kind() != Memory::format_kind::blocked) return {};
  Blocking found{layout.get_submemory_offset() == 0, layout.get_padded_dims(), layout.get_strides(),
                 layout.get_inner_blks(), layout.get_inner_idxs()};
  // Nothing may come after the elements: sums that correct for zero points lie there, for example.
  std::size_t bytes = Memory::data_type_size(layout.get_data_type());
  for (const Memory::dim size : found.padded) bytes *= static_cast<std::size_t>(size);
  found.simple = found.simple && layout.get_size() == bytes;
  return found;
#else
  const dnnl_memory_desc_t& data = layout.data;
  if (data.format_kind != dnnl_blocked) return {};
  const dnnl_blocking_desc_t& blocks = data.format_desc.blocking;
  const auto dims = [](const dnnl_dim_t* from, int count) { return Memory::dims(from, from + count); };
  return {data.extra.flags == 0 && data.offset0 == 0, dims(data.padded_dims, data.ndims),
          dims(blocks.strides, data.ndims), dims(blocks.inner_blks, blocks.inner_nblks),
          dims(blocks.inner_idxs, blocks.inner_nblks)};
#endif
}

/// A layout of weights [depth][width] in blocks of columns, each [depth / group][columns][group], a group of 4 bytes:
/// what oneDNN calls BA16a64b2a for BF16 and BA16a64b for F32.
struct ColumnBlocks {
  std::int64_t columns = 0;  ///< of a block; 0: the layout is another
};

ColumnBlocks column_blocks(const Memory::desc& packed, std::int64_t depth, std::int64_t element) {
  const Blocking layout = blocking_of(packed);
  const std::int64_t group = 4 / element;
  const Memory::dims wanted = group == 1 ? Memory::dims{0, 1} : Memory::dims{0, 1, 0};
  if (!layout.simple || layout.inner_dimensions != wanted) return {};
  if (group > 1 && layout.inner_blocks[2] != group) return {};
  const std::int64_t columns = layout.inner_blocks[1];
  const bool dense = layout.padded[0] == depth && layout.strides[1] == depth * columns &&
                     layout.strides[0] == layout.inner_blocks[0] * columns * group;
  return {dense ? columns : 0};
}

/// Tile kernels multiply two packed tiles of columns at a time.
std::int64_t columns_in_pairs(std::int64_t width) {
  constexpr std::int64_t kPair = 2 * kTileRows;
  return (width + kPair - 1) / kPair * kPair;
}

[[noreturn]] void refuse(const dnnl::error& error, Precision precision, std::int64_t depth,
                         std::int64_t width) {
  throw Error(ErrorCode::internal, fmt::format("oneDNN refuses a {} product of depth {} and width {}: {}",
                                               precision_name(precision), depth, width, error.what()));
}

/// Whether oneDNN uses this instruction set: each one's number has the bits of all those that it includes.
bool includes(dnnl::cpu_isa isa) {
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::f32: return "F32";
    case Precision::bf16: return "BF16";
    case Precision::int8: return "INT8";
  }
  return "";
}

Precision native_precision() {
  return includes(dnnl::cpu_isa::avx512_core_bf16) ? Precision::bf16 : Precision::f32;
}

const TileKernels* native_tiles() {
  static const bool has_tiles =
      includes(dnnl::cpu_isa::avx512_core_amx) && detail::missing_feature(kAmx).empty();
  return has_tiles ? &amx_tile_kernels : nullptr;
}

Precision row_precision(Precision precision) {
  return precision == Precision::int8 ? native_precision() : precision;
}

Precision automatic_precision() {
  // AMX multiplies BF16 several times as fast as registers multiply bytes.
  return row_kernels().bytes != nullptr && !includes(dnnl::cpu_isa::avx512_core_amx) ? Precision::int8
                                                                                     : native_precision();
}

std::string missing_for(Precision precision) {
  switch (precision) {
    case Precision::f32: return {};
    case Precision::bf16: return native_precision() == Precision::bf16 ? "" : "AVX512_BF16 or AMX";
    case Precision::int8: return row_kernels().bytes != nullptr ? "" : "AVX512_VNNI, or AVX2 and no AVX-512";
  }
  return {};
}

std::string describe_products(Precision precision) {
  const auto in_floats = [](Precision own) {
    const bool own_tiles = own == Precision::bf16 && native_tiles() != nullptr;
    return fmt::format("{} by {} ({})", precision_name(own), own_tiles ? "tiles" : "oneDNN", product_isa());
  };
  if (precision != Precision::int8) return in_floats(precision);
  return fmt::format("{} ({}) beside quantised weights, else {}",
                     row_kernels().words != nullptr ? "INT8 or INT16" : "INT8", row_kernels().isa,
                     in_floats(row_precision(precision)));
}

const char* product_isa() {
  using dnnl::cpu_isa;
  static constexpr std::pair<cpu_isa, const char*> kNames[] = {
      {cpu_isa::avx512_core_amx, "AMX"},
      {cpu_isa::avx512_core_bf16, "AVX-512 BF16"},
      {cpu_isa::avx512_core_vnni, "AVX-512 VNNI"},
      {cpu_isa::avx512_core, "AVX-512"},
      {cpu_isa::avx2_vnni, "AVX2 VNNI"},
      {cpu_isa::avx2, "AVX2"},
      {cpu_isa::avx, "AVX"},
      {cpu_isa::sse41, "SSE4.1"},
  };
  for (const auto& [isa, name] : kNames) {
    if (includes(isa)) return name;
  }
  return "other";
}

struct PanelProduct::State {
  Precision precision;
  std::int64_t depth;
  std::int64_t width;
  Memory::desc plain;
  Memory::desc packed;
  ColumnBlocks blocks;
  const TileKernels* tiles = nullptr;
  dnnl::reorder reorder;
  std::vector<dnnl::matmul> products;  // one for each of kBlockHeights
  std::vector<dnnl::matmul::primitive_desc> descriptions;
  Memory::desc reorder_scratch;
  std::size_t scratch = 0;

  State(Precision p, std::int64_t k, std::int64_t n, const TileKernels* kernels)
      : precision(p), depth(k), width(n) {
    if (p == Precision::bf16 && k > 0 && k % kTileDepth == 0 && n > 0) tiles = kernels;
    if (tiles != nullptr) {
      blocks.columns = kTileRows;
      return;
    }
    const OneThread one_thread;
    const auto type = type_of(p);
    // [depth][width] with the depth contiguous: rows of the panel as a file has them.
    plain = Memory::desc({k, n}, type, Memory::dims{1, k});
    for (const std::int64_t height : kBlockHeights) {
      // The first and tallest block determines the layout of the weights.
      const auto weights =
          descriptions.empty() ? Memory::desc({k, n}, type, Memory::format_tag::any) : packed;
      descriptions.push_back(matmul_of({{height, k}, type, Memory::dims{k, 1}}, weights,
                                       {{height, n}, Memory::data_type::f32, Memory::dims{n, 1}}));
      if (descriptions.size() == 1) packed = descriptions.front().weights_desc();
      products.emplace_back(descriptions.back());
      scratch = std::max(scratch, descriptions.back().scratchpad_desc().get_size());
    }
    blocks = column_blocks(packed, k, precision_bytes(p));
    const dnnl::reorder::primitive_desc description(processor(), plain, processor(), packed,
                                                    user_scratchpad());
    reorder = dnnl::reorder(description);
    reorder_scratch = description.scratchpad_desc();
    scratch = std::max(scratch, reorder_scratch.get_size());
  }
};

PanelProduct::PanelProduct(Precision precision, std::int64_t depth, std::int64_t width,
                           const TileKernels* tiles) {
  try {
    state_ = std::make_unique<State>(precision, depth, width, tiles);
  } catch (const dnnl::error& error) {
    refuse(error, precision, depth, width);
  }
}

PanelProduct::~PanelProduct() = default;

Precision PanelProduct::precision() const { return state_->precision; }
std::int64_t PanelProduct::depth() const { return state_->depth; }
std::int64_t PanelProduct::width() const { return state_->width; }
const TileKernels* PanelProduct::tiles() const { return state_->tiles; }
std::size_t PanelProduct::packed_bytes() const {
  if (tiles() == nullptr) return state_->packed.get_size();
  return static_cast<std::size_t>(columns_in_pairs(state_->width) * state_->depth) * sizeof(std::uint16_t);
}
std::size_t PanelProduct::scratch_bytes() const { return state_->scratch; }

void PanelProduct::pack(const void* plain, void* packed, void* scratch) const {
  const State& state = *state_;
  if (tiles() != nullptr) return pack_rows(plain, 0, state.width, packed);
  try {
    const OneThread one_thread;
    const NoHandlers no_handlers;
    dnnl::stream stream(processor());
    Memory from(state.plain, processor(), const_cast<void*>(plain));
    Memory to(state.packed, processor(), packed);
    state.reorder.execute(stream,
                          {{DNNL_ARG_FROM, from},
                           {DNNL_ARG_TO, to},
                           {DNNL_ARG_SCRATCHPAD, Memory(state.reorder_scratch, processor(), scratch)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    refuse(error, state.precision, state.depth, state.width);
  }
}

bool PanelProduct::packs_rows() const { return state_->blocks.columns > 0; }

std::int64_t PanelProduct::columns_together() const { return state_->blocks.columns; }

std::uint32_t* PanelProduct::columns_at(std::int64_t column, void* packed) const {
  assert(packs_rows() && column >= 0 && column < state_->width);
  const std::int64_t columns = state_->blocks.columns;
  const std::int64_t words = state_->depth * precision_bytes(state_->precision) / 4;
  return static_cast<std::uint32_t*>(packed) + column / columns * words * columns + column % columns;
}

void PanelProduct::clear_padding(void* packed) const {
  const std::int64_t columns = state_->blocks.columns;
  const std::int64_t words = state_->depth * precision_bytes(state_->precision) / 4;
  if (const std::int64_t used = state_->width % columns; used != 0) {
    std::uint32_t* const last = columns_at(state_->width - used, packed);
    for (std::int64_t k = 0; k < words; ++k) std::fill_n(last + k * columns + used, columns - used, 0U);
  }
  if (tiles() == nullptr) return;
  const std::int64_t blocks = (state_->width + columns - 1) / columns;
  std::fill_n(static_cast<std::uint32_t*>(packed) + blocks * columns * words,
              (columns_in_pairs(state_->width) - blocks * columns) * words, 0U);
}

void PanelProduct::pack_rows(const void* plain, std::int64_t first, std::int64_t count, void* packed) const {
  assert(packs_rows() && first >= 0 && first + count <= state_->width);
  const std::int64_t columns = state_->blocks.columns;
  const std::int64_t words = state_->depth * precision_bytes(state_->precision) / 4;
  const auto* from = static_cast<const std::uint32_t*>(plain);
  if (first + count == state_->width) clear_padding(packed);
  while (count > 0) {
    const std::int64_t rows = std::min(count, columns - first % columns);
    interleave_rows(from, words, rows, words, columns_at(first, packed), columns);
    from += rows * words;
    first += rows;
    count -= rows;
  }
}

void PanelProduct::multiply(std::int64_t height, const void* x, const void* packed, float* out,
                            void* scratch) const {
  const State& state = *state_;
  const auto at = static_cast<std::size_t>(std::find(kBlockHeights.begin(), kBlockHeights.end(), height) -
                                           kBlockHeights.begin());
  const dnnl::matmul::primitive_desc& description = state.descriptions[at];
  try {
    const OneThread one_thread;
    const NoHandlers no_handlers;
    dnnl::stream stream(processor());
    const Memory source(description.src_desc(), processor(), const_cast<void*>(x));
    const Memory weights(state.packed, processor(), const_cast<void*>(packed));
    const Memory result(description.dst_desc(), processor(), out);
    const Memory workspace(description.scratchpad_desc(), processor(), scratch);
    state.products[at].execute(stream, {{DNNL_ARG_SRC, source},
                                        {DNNL_ARG_WEIGHTS, weights},
                                        {DNNL_ARG_DST, result},
                                        {DNNL_ARG_SCRATCHPAD, workspace}});
    stream.wait();
  } catch (const dnnl::error& error) {
    refuse(error, state.precision, state.depth, state.width);
  }
}

}  // namespace headwater::runtime
