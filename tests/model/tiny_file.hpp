#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/model/model.hpp"
#include "runtime/model/model_config.hpp"
#include "tests/gguf/builder.hpp"

/// Files of models made up in memory, and what is read from them.
namespace headwater::runtime::testing {

/// Metadata by its keys without the architecture.
using Values = std::map<std::string, std::variant<std::string, float, std::int64_t>>;

/// A model of two layers with the smallest sizes that make sense; the parts may be changed before build().
struct TinyFile {
  std::string architecture = "llama";
  std::int64_t head_count = 2;
  std::int64_t head_count_kv = 1;
  bool qk_norm = false;
  bool epsilon = true;
  Values metadata;
  std::function<void(Builder&)> more_metadata = [](Builder&) {};
  std::string left_out;           // a tensor
  std::string added;              // a tensor of 8 elements
  std::vector<float> rope_freqs;  // the tensor of the next line
  std::string rope_tensor = "rope_freqs.weight";
  float filling = 0.01F;
  std::uint64_t vocabulary = 40;
  std::uint32_t context = 512;
  bool own_head = false;              // output.weight
  std::optional<std::size_t> spoilt;  // element of the embedding that is NaN

  [[nodiscard]] std::vector<std::byte> build() const {
    Builder file;
    const std::string a = architecture + ".";
    file.add_text("general.architecture", architecture);
    file.add(a + "context_length", kU32, context);
    file.add<std::uint32_t>(a + "block_count", kU32, 2);
    file.add<std::uint32_t>(a + "embedding_length", kU32, 16);
    file.add<std::uint32_t>(a + "feed_forward_length", kU32, 24);
    file.add(a + "attention.head_count", kU32, static_cast<std::uint32_t>(head_count));
    file.add(a + "attention.head_count_kv", kU32, static_cast<std::uint32_t>(head_count_kv));
    if (epsilon) file.add<float>(a + "attention.layer_norm_rms_epsilon", kF32, 1e-5F);
    for (const auto& [name, value] : metadata) {
      if (const auto* const text = std::get_if<std::string>(&value)) {
        file.add_text(a + name, *text);
      } else if (const auto* const number = std::get_if<float>(&value)) {
        file.add(a + name, kF32, *number);
      } else {
        file.add(a + name, kU32, static_cast<std::uint32_t>(std::get<std::int64_t>(value)));
      }
    }
    more_metadata(file);
    std::uint64_t offset = 0;
    const auto tensor = [&](const std::string& name, const std::vector<std::uint64_t>& dims) {
      if (name == left_out) return;
      file.add_tensor(name, dims, kF32Tensor, offset);
      std::uint64_t elements = 1;
      for (const std::uint64_t size : dims) elements *= size;
      offset += (elements * 4 + 31) / 32 * 32;
    };
    const std::uint64_t kv = 8 * static_cast<std::uint64_t>(head_count_kv);
    if (!rope_freqs.empty()) tensor(rope_tensor, {rope_freqs.size()});
    const std::uint64_t embedding = offset;
    tensor("token_embd.weight", {16, vocabulary});
    if (own_head) tensor("output.weight", {16, vocabulary});
    tensor("output_norm.weight", {16});
    for (const char* layer : {"blk.0.", "blk.1."}) {
      const std::string at = layer;
      tensor(at + "attn_norm.weight", {16});
      tensor(at + "ffn_norm.weight", {16});
      tensor(at + "attn_q.weight", {16, 16});
      tensor(at + "attn_k.weight", {16, kv});
      tensor(at + "attn_v.weight", {16, kv});
      tensor(at + "attn_output.weight", {16, 16});
      tensor(at + "ffn_gate.weight", {16, 24});
      tensor(at + "ffn_up.weight", {16, 24});
      tensor(at + "ffn_down.weight", {24, 16});
      if (qk_norm) tensor(at + "attn_q_norm.weight", {8}), tensor(at + "attn_k_norm.weight", {8});
    }
    if (!added.empty()) tensor(added, {8});
    file.data_bytes = offset;
    std::vector<std::byte> bytes = file.build();
    const std::size_t data = bytes.size() - offset;
    for (std::size_t i = 0; i < offset; i += 4) std::memcpy(bytes.data() + data + i, &filling, 4);
    std::memcpy(bytes.data() + data, rope_freqs.data(), rope_freqs.size() * 4);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (spoilt) std::memcpy(bytes.data() + data + embedding + *spoilt * 4, &nan, 4);
    return bytes;
  }
};

inline std::string load_refusal(const TinyFile& tiny) {
  const auto bytes = tiny.build();
  return refusal([&] {
    (void)Model::load(std::make_shared<const GgufFile>(GgufFile::parse(bytes, "m.gguf")),
                      {Precision::f32, 1});
  });
}

inline ModelConfig config_of(const TinyFile& tiny) {
  const auto bytes = tiny.build();
  return read_model_config(GgufFile::parse(bytes, "m.gguf"));
}

inline std::string config_refusal(const TinyFile& tiny) {
  return refusal([&] { (void)config_of(tiny); });
}

/// A file of an architecture that says this.
inline TinyFile tiny_file(const std::string& architecture, Values metadata) {
  TinyFile tiny;
  tiny.architecture = architecture;
  tiny.metadata = std::move(metadata);
  return tiny;
}

}  // namespace headwater::runtime::testing
