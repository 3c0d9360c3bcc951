#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/model/transformer.hpp"

namespace headwater::runtime::testing {

/// To the part behind it, at once.
class NextPart final : public Relay {
 public:
  void opened() override {}
  void pass(const PartCall& call, std::span<const float> rows) override {
    if (refused == call.kind) throw Error(ErrorCode::internal, "refused by a test");
    if (next != nullptr) next->repeat(call, std::vector<float>(rows.begin(), rows.end()));
  }
  void answer(std::span<const float> logits) override {
    first->answers_.emplace_back(logits.begin(), logits.end());
  }
  void collect(std::span<float> logits) override {
    ASSERT_FALSE(answers_.empty());
    ASSERT_EQ(logits.size(), answers_.front().size());
    std::copy(answers_.front().begin(), answers_.front().end(), logits.begin());
    answers_.pop_front();
  }

  Transformer* next = nullptr;
  NextPart* first = nullptr;
  std::optional<PartCall::Kind> refused;  ///< calls that do not get through

 private:
  std::deque<std::vector<float>> answers_;  // in the order in which they were asked for
};

/// A model whole, or cut before the layers in `cuts`; `load` is asked for each part.
class Parts {
 public:
  Parts(const std::vector<std::int64_t>& cuts, TransformerOptions options,
        const std::function<std::shared_ptr<const Model>(const ModelPart&)>& load) {
    std::vector<std::int64_t> ends = cuts;
    ends.push_back(ModelPart::kAll);
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      if (!cuts.empty()) {
        relays.push_back(std::make_shared<NextPart>());
        relays.back()->first = relays.front().get();
        options.relay = relays.back();
      }
      models.push_back(load({first, end}));
      parts.push_back(std::make_unique<Transformer>(models.back(), options));
      first = end;
    }
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) relays[i]->next = parts[i + 1].get();
  }
  [[nodiscard]] Transformer& front() { return *parts.front(); }

  std::vector<std::shared_ptr<NextPart>> relays;
  std::vector<std::shared_ptr<const Model>> models;
  std::vector<std::unique_ptr<Transformer>> parts;
};

}  // namespace headwater::runtime::testing
