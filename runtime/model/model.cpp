#include "runtime/model/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"
#include "optimized/threads/team.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/model/kernels/kernels.hpp"

namespace headwater::runtime {

namespace {

constexpr std::string_view kOwnHead = "output.weight";  // missing where the embedding is the head
constexpr std::string_view kEmbedding = "token_embd.weight";

/// Whether a part reads this tensor.
bool reads(const ModelPart& part, std::string_view name, bool own_head) {
  if (name == kEmbedding) return part.has_embedding() || (part.has_head() && !own_head);
  const std::optional<std::int64_t> layer = layer_of_tensor(name);
  return layer ? part.has_layer(*layer) : part.has_head();
}

}  // namespace

std::optional<std::int64_t> layer_of_tensor(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return std::nullopt;
  std::int64_t layer = -1;
  (void)std::from_chars(name.data() + kLayer.size(), name.data() + name.size(), layer);
  return layer;
}

/// Builds a Model from the tensors of a file.
class ModelReader {
 public:
  ModelReader(Model& model, const GgufFile& file) : model_(model), file_(file) {}
  /// Everything but packed weights.
  void read_structure(const ModelOptions& options);
  void pack(int threads);

 private:
  const Tensor& use(const std::string& name, std::span<const std::int64_t> dims);
  std::vector<float> vector(const std::string& name, std::int64_t n);
  [[nodiscard]] std::vector<float> values_of(const Tensor& tensor) const;
  std::vector<float> vector_or_none(const std::string& name, std::int64_t n);
  std::unique_ptr<Projection> whole(const std::string& name, std::int64_t depth, std::int64_t rows);
  void read_layer(std::int64_t index);
  void read_qkv(const std::string& prefix, LayerWeights& layer);
  void read_attention(const std::string& prefix, LayerWeights& layer);
  void read_gated_qkv(const std::string& prefix, LayerWeights& layer);
  void read_recurrent(const std::string& prefix, LayerWeights& layer);
  void read_latent(const std::string& prefix, LayerWeights& layer);
  std::vector<RowRange> latent_rows(const std::string& prefix, std::int64_t plain);
  void turn_matrices();
  std::unique_ptr<Projection> gate_up(const RowRange& gate, const RowRange& up);
  void read_gate_up(const std::string& prefix, LayerWeights& layer);
  void read_experts(const std::string& prefix, LayerWeights& layer);
  void read_expert_biases(const std::string& prefix, LayerWeights& layer);
  void read_shared(const std::string& prefix, LayerWeights& layer);
  std::vector<float> matrix(const std::string& name, std::int64_t columns, std::int64_t rows);
  void read_head();
  void check_embedding(int threads) const;
  void refuse_unknown_tensors() const;
  [[nodiscard]] std::unique_ptr<Projection> project(std::vector<RowRange> rows);
  [[nodiscard]] std::vector<Projection*> projections() const;
  void pack_one(Projection& projection, int threads, std::span<ProjectionScratch> scratch) const;

  Model& model_;
  const GgufFile& file_;
  std::set<std::string_view> used_;
};

const Tensor& ModelReader::use(const std::string& name, std::span<const std::int64_t> dims) {
  const Tensor& tensor = file_.tensor(name, dims);
  used_.insert(tensor.name);
  return tensor;
}

std::vector<float> ModelReader::vector(const std::string& name, std::int64_t n) {
  const std::array dims = {n};
  return values_of(use(name, dims));
}

std::vector<float> ModelReader::matrix(const std::string& name, std::int64_t columns, std::int64_t rows) {
  const std::array dims = {columns, rows};
  return values_of(use(name, dims));
}

std::vector<float> ModelReader::values_of(const Tensor& tensor) const {
  const std::int64_t n = tensor.dims[0];
  std::vector<float> values(static_cast<std::size_t>(n * tensor.rows()));
  for (std::int64_t r = 0; r < tensor.rows(); ++r) {
    dequantize_row(tensor.type, tensor.row(r), n, values.data() + r * n);
  }
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
    file_.refuse(fmt::format("tensor '{}': holds NaN or infinity; allowed: finite weights", tensor.name));
  }
  return values;
}

std::vector<float> ModelReader::vector_or_none(const std::string& name, std::int64_t n) {
  return file_.find_tensor(name) == nullptr ? std::vector<float>{} : vector(name, n);
}

std::unique_ptr<Projection> ModelReader::project(std::vector<RowRange> rows) {
  return std::make_unique<Projection>(model_.products_, model_.precision_, std::move(rows));
}

std::unique_ptr<Projection> ModelReader::whole(const std::string& name, std::int64_t depth,
                                               std::int64_t rows) {
  const std::array dims = {depth, rows};
  return project({{&use(name, dims), 0, rows}});
}

void ModelReader::read_qkv(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  if (config.latent > 0) return read_latent(prefix, layer);
  if (config.gated_attention) return read_gated_qkv(prefix, layer);
  struct Part {
    const char* name;
    std::int64_t rows;
  };
  const std::array parts = {Part{"attn_q", config.heads * config.d_head},
                            Part{"attn_k", config.heads_kv * config.d_head},
                            Part{"attn_v", config.heads_kv * config.d_value}};
  if (config.fused_qkv) {
    const std::int64_t all = parts[0].rows + parts[1].rows + parts[2].rows;
    layer.qkv = whole(prefix + "attn_qkv.weight", config.width, all);
    layer.qkv_bias = vector_or_none(prefix + "attn_qkv.bias", all);
    return;
  }
  std::vector<RowRange> rows;
  bool any_bias = false;
  std::vector<float> bias;
  for (const Part& part : parts) {
    const std::array dims = {config.width, part.rows};
    rows.push_back({&use(fmt::format("{}{}.weight", prefix, part.name), dims), 0, part.rows});
    auto values = vector_or_none(fmt::format("{}{}.bias", prefix, part.name), part.rows);
    any_bias = any_bias || !values.empty();
    values.resize(static_cast<std::size_t>(part.rows), 0.0F);
    bias.insert(bias.end(), values.begin(), values.end());
  }
  if (any_bias) layer.qkv_bias = std::move(bias);
  layer.qkv = project(std::move(rows));
}

/// In a file a head's gate follows its query row.
void ModelReader::read_gated_qkv(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const std::array queries = {config.width, 2 * config.heads * config.d_head};
  const std::array keys = {config.width, config.heads_kv * config.d_head};
  const std::array values = {config.width, config.heads_kv * config.d_value};
  const Tensor& query = use(prefix + "attn_q.weight", queries);
  std::vector<RowRange> rows;
  for (std::int64_t h = 0; h < config.heads; ++h)
    rows.push_back({&query, 2 * h * config.d_head, config.d_head});
  rows.push_back({&use(prefix + "attn_k.weight", keys), 0, keys[1]});
  rows.push_back({&use(prefix + "attn_v.weight", values), 0, values[1]});
  for (std::int64_t h = 0; h < config.heads; ++h)
    rows.push_back({&query, (2 * h + 1) * config.d_head, config.d_head});
  layer.qkv = project(std::move(rows));
}

void ModelReader::read_recurrent(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const DeltaShape& delta = config.delta;
  const std::int64_t channels = delta.channels();
  const std::int64_t inner = delta.value_heads * delta.d;
  std::vector<RowRange> rows;
  for (const auto& [name, count] : {std::pair{"attn_qkv", channels},
                                    {"attn_gate", inner},
                                    {"ssm_beta", delta.value_heads},
                                    {"ssm_alpha", delta.value_heads}}) {
    const std::array dims = {config.width, count};
    rows.push_back({&use(fmt::format("{}{}.weight", prefix, name), dims), 0, count});
  }
  layer.qkv = project(std::move(rows));
  layer.output = whole(prefix + "ssm_out.weight", inner, config.width);
  const std::vector<float> taps = matrix(prefix + "ssm_conv1d.weight", delta.taps, channels);
  DeltaWeights& weights = layer.delta;
  weights.convolution.resize(taps.size());
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t t = 0; t < delta.taps; ++t)
      weights.convolution[static_cast<std::size_t>(t * channels + c)] =
          taps[static_cast<std::size_t>(c * delta.taps + t)];
  }
  weights.rate = vector(prefix + "ssm_a", delta.value_heads);
  weights.step_bias = vector(prefix + "ssm_dt.bias", delta.value_heads);
  weights.norm = vector(prefix + "ssm_norm.weight", delta.d);
}

void ModelReader::read_attention(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  if (config.head_norms != HeadNorms::none) {
    const bool together = config.head_norms == HeadNorms::together;
    layer.query_norm = vector(prefix + "attn_q_norm.weight", config.d_head * (together ? config.heads : 1));
    layer.key_norm = vector(prefix + "attn_k_norm.weight", config.d_head * (together ? config.heads_kv : 1));
  }
  read_qkv(prefix, layer);
  layer.output = whole(prefix + "attn_output.weight", config.heads * config.d_value, config.width);
  layer.output_bias = vector_or_none(prefix + "attn_output.bias", config.width);
  if (config.sinks) layer.sinks = vector(prefix + "attn_sinks.weight", config.heads);
}

/// Rotated elements come last in a file and first here.
void ModelReader::read_latent(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const auto rotated = static_cast<std::int64_t>(2 * config.rotations.front().inverse.size());
  const std::int64_t plain = config.d_head - rotated;
  const std::array in = {config.width, config.heads * config.d_head};
  const Tensor& query = use(prefix + "attn_q.weight", in);
  std::vector<RowRange> rows;
  for (std::int64_t h = 0; h < config.heads; ++h) {
    rows.push_back({&query, h * config.d_head + plain, rotated});
    rows.push_back({&query, h * config.d_head, plain});
  }
  layer.qkv = project(std::move(rows));
  layer.latent = whole(prefix + "attn_kv_a_mqa.weight", config.width, config.latent + rotated);
  layer.latent_norm = vector(prefix + "attn_kv_a_norm.weight", config.latent);
  layer.latent_up = project(latent_rows(prefix, plain));
}

/// Of all keys, `plain` elements each, and of all values. In older files they take turns in one matrix, in newer ones the
/// matrices of keys lie the other way round.
std::vector<RowRange> ModelReader::latent_rows(const std::string& prefix, std::int64_t plain) {
  const ModelConfig& config = model_.config_;
  const std::int64_t head = plain + config.d_value;
  const std::string both = prefix + "attn_kv_b.weight";
  if (file_.find_tensor(both) == nullptr) {
    const std::array down = {plain, config.latent, config.heads};
    const std::array up = {config.latent, config.d_value, config.heads};
    const Tensor& keys = use(prefix + "attn_k_b.weight", down);
    model_.made_.push_back({{keys.name, TensorType::f32, {config.latent, plain, config.heads}, {}}, {}});
    return {{&model_.made_.back().tensor, 0, config.heads * plain},
            {&use(prefix + "attn_v_b.weight", up), 0, config.heads * config.d_value}};
  }
  const std::array dims = {config.latent, config.heads * head};
  const Tensor& tensor = use(both, dims);
  std::vector<RowRange> rows;
  for (std::int64_t h = 0; h < config.heads; ++h) rows.push_back({&tensor, h * head, plain});
  for (std::int64_t h = 0; h < config.heads; ++h) rows.push_back({&tensor, h * head + plain, config.d_value});
  return rows;
}

/// Those of this part.
void ModelReader::turn_matrices() {
  for (MadeTensor& made : model_.made_) {
    if (!model_.part_.has_layer(layer_of_tensor(made.tensor.name).value_or(-1))) continue;
    const std::int64_t depth = made.tensor.dims[0];
    const std::int64_t plain = made.tensor.dims[1];
    const Tensor& from = file_.tensor(made.tensor.name);
    made.values.resize(static_cast<std::size_t>(depth * made.tensor.rows()));
    std::vector<float> row(static_cast<std::size_t>(plain));
    for (std::int64_t r = 0; r < from.rows(); ++r) {
      dequantize_row(from.type, from.row(r), plain, row.data());
      float* const to = made.values.data() + r / depth * plain * depth + r % depth;
      for (std::int64_t i = 0; i < plain; ++i) to[i * depth] = row[static_cast<std::size_t>(i)];
    }
    made.tensor.data = std::as_bytes(std::span(made.values));
  }
}

/// The rows of gate and up in turns.
std::unique_ptr<Projection> ModelReader::gate_up(const RowRange& gate, const RowRange& up) {
  std::vector<RowRange> rows;
  for (std::int64_t first = 0; first < gate.count; first += kGateRows) {
    const std::int64_t count = std::min(kGateRows, gate.count - first);
    rows.push_back({gate.tensor, gate.first + first, count});
    rows.push_back({up.tensor, up.first + first, count});
  }
  return project(std::move(rows));
}

void ModelReader::read_gate_up(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const std::int64_t width = config.experts > 0 ? config.dense_feed_forward : config.feed_forward;
  const std::array dims = {config.width, width * (config.fused_gate ? 2 : 1)};
  const Tensor& up = use(prefix + "ffn_up.weight", dims);
  const Tensor& gate = config.fused_gate ? up : use(prefix + "ffn_gate.weight", dims);
  layer.gate_up = gate_up({&gate, 0, width}, {&up, config.fused_gate ? width : 0, width});
  layer.down = whole(prefix + "ffn_down.weight", width, config.width);
}

void ModelReader::read_experts(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const std::int64_t width = config.feed_forward;
  const std::array router = {config.width, config.experts};
  layer.router = std::make_unique<Projection>(
      model_.products_, Precision::f32,
      std::vector{RowRange{&use(prefix + "ffn_gate_inp.weight", router), 0, config.experts}});
  const std::array in = {config.width, width, config.experts};
  const std::array out = {width, config.width, config.experts};
  const Tensor& gate = use(prefix + "ffn_gate_exps.weight", in);
  const Tensor& up = use(prefix + "ffn_up_exps.weight", in);
  const Tensor& down = use(prefix + "ffn_down_exps.weight", out);
  for (std::int64_t e = 0; e < config.experts; ++e) {
    layer.experts.push_back({gate_up({&gate, e * width, width}, {&up, e * width, width}),
                             project({{&down, e * config.width, config.width}}),
                             {},
                             {}});
  }
  if (config.expert_biases) read_expert_biases(prefix, layer);
  if (config.shared_feed_forward > 0) read_shared(prefix, layer);
}

void ModelReader::read_shared(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const std::int64_t width = config.shared_feed_forward;
  const std::array in = {config.width, width};
  const Tensor& gate = use(prefix + "ffn_gate_shexp.weight", in);
  const Tensor& up = use(prefix + "ffn_up_shexp.weight", in);
  layer.shared.gate_up = gate_up({&gate, 0, width}, {&up, 0, width});
  layer.shared.down = whole(prefix + "ffn_down_shexp.weight", width, config.width);
  if (config.shared_gate) layer.shared_gate = vector(prefix + "ffn_gate_inp_shexp.weight", config.width);
}

void ModelReader::read_expert_biases(const std::string& prefix, LayerWeights& layer) {
  const ModelConfig& config = model_.config_;
  const std::int64_t width = config.feed_forward;
  layer.router_bias = vector(prefix + "ffn_gate_inp.bias", config.experts);
  const std::vector<float> gates = matrix(prefix + "ffn_gate_exps.bias", width, config.experts);
  const std::vector<float> ups = matrix(prefix + "ffn_up_exps.bias", width, config.experts);
  const std::vector<float> downs = matrix(prefix + "ffn_down_exps.bias", config.width, config.experts);
  for (std::int64_t e = 0; e < config.experts; ++e) {
    Expert& expert = layer.experts[static_cast<std::size_t>(e)];
    for (std::int64_t first = 0; first < width; first += kGateRows) {
      const std::int64_t count = std::min(kGateRows, width - first);
      for (const auto* part : {&gates, &ups}) {
        const auto from = part->begin() + e * width + first;
        expert.gate_up_bias.insert(expert.gate_up_bias.end(), from, from + count);
      }
    }
    const auto down = downs.begin() + e * config.width;
    expert.down_bias.assign(down, down + config.width);
  }
}

void ModelReader::read_layer(std::int64_t index) {
  const ModelConfig& config = model_.config_;
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerWeights layer;
  if (config.norms_before) {
    layer.attention_norm = vector(prefix + "attn_norm.weight", config.width);
    if (!config.parallel) layer.mlp_norm = vector(prefix + config.mlp_norm + ".weight", config.width);
  }
  if (config.norms_after) {
    layer.attention_after_norm = vector(prefix + "post_attention_norm.weight", config.width);
    layer.mlp_after_norm = vector(prefix + "post_ffw_norm.weight", config.width);
  }
  const LayerSpec& spec = config.layer_specs[static_cast<std::size_t>(index)];
  spec.recurrent ? read_recurrent(prefix, layer) : read_attention(prefix, layer);
  if (config.experts > 0 && !spec.dense) {
    read_experts(prefix, layer);
  } else {
    read_gate_up(prefix, layer);
  }
  // Tensors of other parts are checked, too: a file is refused by all parts or by none.
  if (model_.part_.has_layer(index)) model_.layers_.push_back(std::move(layer));
}

void ModelReader::read_head() {
  const ModelConfig& config = model_.config_;
  model_.final_norm_ = vector("output_norm.weight", config.width);
  const std::array dims = {config.width, config.vocabulary};
  model_.embedding_ = &use(std::string(kEmbedding), dims);
  auto head = whole(std::string(file_.find_tensor(kOwnHead) != nullptr ? kOwnHead : kEmbedding), config.width,
                    config.vocabulary);
  if (model_.part_.has_head()) model_.head_ = std::move(head);
}

/// An embedding that is the head of this part, too, is checked where that is packed.
void ModelReader::check_embedding(int threads) const {
  const Tensor& tensor = *model_.embedding_;
  const ModelPart& part = model_.part_;
  if (!part.has_embedding() || (part.has_head() && file_.find_tensor(kOwnHead) == nullptr)) return;
  constexpr std::int64_t kRows = 256;  // of a task
  const std::int64_t width = model_.config_.width;
  parallel_tasks(threads, (tensor.rows() + kRows - 1) / kRows, [&](std::int64_t task, int) {
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::int64_t r = task * kRows; r < std::min((task + 1) * kRows, tensor.rows()); ++r) {
      dequantize_row(tensor.type, tensor.row(r), width, row.data());
      if (std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); })) continue;
      file_.refuse(
          fmt::format("tensor '{}': row {} holds NaN or infinity; allowed: finite weights", tensor.name, r));
    }
  });
  file_.release(tensor);
}

void ModelReader::refuse_unknown_tensors() const {
  for (const Tensor& tensor : file_.tensors()) {
    const bool long_rope =
        model_.config_.long_beyond > 0 && std::string_view(tensor.name).starts_with("rope_factors_");
    const std::int64_t behind = layer_of_tensor(tensor.name).value_or(-1) - model_.config_.layers;
    const bool left_out = behind >= 0 && behind < model_.config_.left_out_blocks;
    if (used_.contains(tensor.name) || long_rope || left_out || tensor.name == "rope_freqs.weight") continue;
    file_.refuse(fmt::format("tensor '{}' has no meaning in a {} model of {} layers that is supported here",
                             tensor.name, model_.config_.architecture, model_.config_.layers));
  }
}

std::vector<Projection*> ModelReader::projections() const {
  std::vector<Projection*> all;
  model_.for_projections([&](Projection& one) { all.push_back(&one); });
  return all;
}

void ModelReader::pack_one(Projection& projection, int threads, std::span<ProjectionScratch> scratch) const {
  try {
    projection.pack(threads, scratch);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    file_.refuse(error.what());
  }
  if (projection.reads_file()) return;
  projection.for_tensors([this](const Tensor& tensor) { file_.release(tensor); });
}

void ModelReader::pack(int threads) {
  check_embedding(threads);
  turn_matrices();
  std::vector<ProjectionScratch> scratch(static_cast<std::size_t>(threads));
  for (ProjectionScratch& one : scratch) one.memory = AlignedBuffer(model_.scratch_bytes());
  std::size_t bytes = 0;
  for (const Projection* projection : projections()) bytes += aligned_size(projection->packed_bytes());
  model_.packed_ = AlignedBuffer(bytes);
  std::byte* memory = model_.packed_.data();
  for (Projection* projection : projections()) {
    projection->place(memory);
    pack_one(*projection, threads, scratch);
    memory += aligned_size(projection->packed_bytes());
  }
}

void ModelReader::read_structure(const ModelOptions& options) {
  model_.config_ = read_model_config(file_);
  model_.precision_ = options.precision;
  model_.part_ = options.part;
  read_head();
  for (std::int64_t i = 0; i < model_.config_.layers; ++i) read_layer(i);
  refuse_unknown_tensors();
  file_.refuse_gaps();
}

std::shared_ptr<const Model> Model::load(std::shared_ptr<const GgufFile> file, const ModelOptions& options) {
  std::shared_ptr<Model> model(new Model);
  model->file_ = std::move(file);
  ModelReader reader(*model, *model->file_);
  reader.read_structure(options);
  reader.pack(options.threads);
  return model;
}

void Model::check(const GgufFile& file) {
  Model model;
  ModelReader(model, file).read_structure({});
}

std::uint64_t Model::packed_bytes(const GgufFile& file, Precision precision, const ModelPart& part) {
  std::uint64_t bytes = 0;
  const bool own_head = file.find_tensor(kOwnHead) != nullptr;
  const auto element = static_cast<std::uint64_t>(precision_bytes(row_precision(precision)));
  const auto packed = [&](const Tensor& tensor) -> std::uint64_t {
    if (tensor.dims.size() < 2 || tensor.name.ends_with(".ssm_conv1d.weight")) return 0;
    if (tensor.name.ends_with(".attn_k_b.weight")) {  // turned, and packed
      return static_cast<std::uint64_t>(tensor.dims[0] * tensor.rows()) * (sizeof(float) + element);
    }
    if (is_quantised(tensor.type)) {
      if (!packs_in_groups(tensor.type, tensor.dims[0])) return 0;
      const auto groups = static_cast<std::uint64_t>((tensor.dims[1] + kRowsOfGroup - 1) / kRowsOfGroup);
      const auto matrices = static_cast<std::uint64_t>(tensor.rows() / tensor.dims[1]);
      return matrices * groups * group_bytes(tensor.type, tensor.dims[0]);
    }
    return static_cast<std::uint64_t>(tensor.dims[0]) * static_cast<std::uint64_t>(tensor.rows()) * element;
  };
  for (const Tensor& tensor : file.tensors()) {
    // An embedding that is no head is not packed.
    const bool head = tensor.name != kEmbedding || (part.has_head() && !own_head);
    if (head && reads(part, tensor.name, own_head)) bytes += packed(tensor);
  }
  return bytes;
}

std::uint64_t Model::file_bytes(const GgufFile& file, const ModelPart& part) {
  if (part.has_embedding() && part.has_head()) return file.file_bytes();
  const bool own_head = file.find_tensor(kOwnHead) != nullptr;
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : file.tensors()) {
    if (reads(part, tensor.name, own_head)) bytes += tensor.data.size();
  }
  return bytes;
}

std::size_t Model::scratch_bytes() const {
  std::size_t bytes = 0;
  for_projections([&](const Projection& one) { bytes = std::max(bytes, one.scratch_bytes()); });
  return bytes;
}

std::int64_t Model::bytes_per_token() const {
  std::int64_t bytes = 0;
  for_projections([&](const Projection& one) { bytes += one.stored_bytes(); });
  // Of the experts, which are all of one size, a token reads some.
  for (const LayerWeights& layer : layers_) {
    if (layer.experts.empty()) continue;
    const Expert& one = layer.experts.front();
    bytes -=
        (config_.experts - config_.experts_used) * (one.gate_up->stored_bytes() + one.down->stored_bytes());
  }
  return bytes;
}

void Model::embed(std::int32_t id, float* row) const {
  if (HEADWATER_SABOTAGE("runtime.embed.id_in_16_bits")) id &= 0xFFFF;
  dequantize_row(embedding_->type, embedding_->row(id), config_.width, row);
  if (config_.embedding_scale == 1) return;
  for (std::int64_t i = 0; i < config_.width; ++i) row[i] *= config_.embedding_scale;
}

}  // namespace headwater::runtime
