#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headwater::bench {

/// The sizes of a published model, from its authors' configuration file. Its tokenizer and a scaling of its rotary
/// embedding are left out: neither changes what a token costs.
struct ModelShape {
  std::string_view name;          ///< "qwen3-0.6b"
  std::string_view architecture;  ///< GGUF's general.architecture
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t heads_kv;
  std::int64_t d_head;
  std::int64_t feed_forward;
  std::int64_t vocabulary;
  std::int64_t context;
  double rope_base;
  bool tied;                      ///< the embedding is the output head
  std::int64_t experts = 0;       ///< each feed_forward wide
  std::int64_t experts_used = 0;  ///< by a token
  std::int64_t window = 0;        ///< of the layers that have one; 0: none
};

[[nodiscard]] std::span<const ModelShape> model_shapes();
/// nullptr where no model has this name.
[[nodiscard]] const ModelShape* find_shape(std::string_view name);
/// "qwen3-0.6b, qwen3-1.7b, ...", for help and error messages.
[[nodiscard]] std::string shape_names();

}  // namespace headwater::bench
