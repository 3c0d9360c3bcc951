#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/generate/flags.hpp"
#include "cli/support/loaded_model.hpp"

namespace headwater::cli {

/// What was typed for a turn.
struct Words {
  std::string text;
  std::string question;  ///< after a document
};

/// The tokens of a turn.
struct Turn {
  std::vector<std::int32_t> ids;
  std::int64_t question = 0;  ///< of these, from the question on
};

/// What is said of a text of which no token is left.
inline constexpr const char* kNoTokens =
    "the prompt has no token: no character of it is in the model's vocabulary; allowed: one token or more";

/// `first`: the turn opens the conversation. `ended`: the answer before it ended by a token of its own; one that the number of
/// tokens cut off is closed first in a chat. Failure where the model has no chat format that is known.
[[nodiscard]] Turn encode_turn(const GenerateFlags& flags, const LoadedModel& model, const Words& words,
                               bool first, bool ended);

/// Tokens at the end of a sparse turn that see every token: --dense-tail, else the question, or kDenseTail.
[[nodiscard]] std::int64_t dense_tail_of(const GenerateFlags& flags, const Turn& turn);

/// Failure where a prompt of so many tokens does not fit into the context; `what` names it.
void check_prompt(const std::string& what, std::int64_t tokens, const LoadedModel& model);

}  // namespace headwater::cli
