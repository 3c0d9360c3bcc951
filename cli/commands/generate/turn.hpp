#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands/generate/flags.hpp"
#include "cli/support/loaded_model.hpp"
#include "runtime/tokenizer/chat.hpp"

namespace headwater::cli {

/// What was typed for a turn.
struct Words {
  std::string text;
  std::string question;  ///< after a document
};

/// The tokens of a turn.
struct Turn {
  std::vector<std::int32_t> ids;
  std::int64_t question = 0;                   ///< of these, from the question on
  bool anew = false;                           ///< the conversation from its beginning, for an empty session
  std::vector<runtime::ChatMessage> messages;  ///< that the turn adds to a chat
};

/// What is said of a text of which no token is left.
inline constexpr const char* kNoTokens =
    "the prompt has no token: no character of it is in the model's vocabulary; allowed: one token or more";

/// `first`: the turn opens the conversation. In a chat (`chat` is not null) `said` is what was said before, answers too, and
/// the turn begins with what ends the latest one. Failure where the template refuses the conversation.
[[nodiscard]] Turn encode_turn(const GenerateFlags& flags, const LoadedModel& model,
                               const runtime::ChatTemplate* chat, const Words& words, bool first,
                               std::span<const runtime::ChatMessage> said);

/// Tokens at the end of a sparse turn that see every token: --dense-tail, else the question, or kDenseTail.
[[nodiscard]] std::int64_t dense_tail_of(const GenerateFlags& flags, const Turn& turn);

/// Failure where a prompt of so many tokens does not fit into the context; `what` names it.
void check_prompt(const std::string& what, std::int64_t tokens, const LoadedModel& model);

}  // namespace headwater::cli
