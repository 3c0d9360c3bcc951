#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headwater::runtime {

/// Which rows of a step go to which experts of a layer (Shazeer et al., 2017): of each row to the `used` of the highest
/// logits, of equals the lower one, weighted by the softmax over these, or over all. A row with a NaN among its logits has
/// weights of NaN.
class Routing {
 public:
  /// One row at an expert.
  struct Visit {
    std::int32_t row = 0;
    float weight = 0;
  };

  /// Takes all memory that choose() needs for up to `rows` rows.
  void reserve(std::int64_t rows, std::int64_t experts, std::int64_t used, bool weights_of_all = false);
  /// logits: [rows][experts] floats.
  void choose(const float* logits, std::int64_t rows);
  /// Of one expert, rows ascending; valid until the next choose().
  [[nodiscard]] std::span<const Visit> of(std::int64_t expert) const {
    const auto at = static_cast<std::size_t>(expert);
    return std::span(visits_).subspan(begins_[at], begins_[at + 1] - begins_[at]);
  }

 private:
  struct Choice {
    std::int32_t expert = 0;
    float weight = 0;
  };
  /// Of one row, to choices [used].
  void choose_row(const float* logits, Choice* choices) const;

  std::int64_t experts_ = 0;
  std::int64_t used_ = 0;
  bool weights_of_all_ = false;
  std::vector<Choice> choices_;      // [rows][used]
  std::vector<std::size_t> begins_;  // of each expert in visits_, and their end
  std::vector<Visit> visits_;
};

}  // namespace headwater::runtime
