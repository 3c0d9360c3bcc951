#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

/// How turns of a conversation are marked. Formats are written out here; templates in files (a programming language
/// of their own) are not run.
enum class ChatFormat : std::uint8_t {
  chatml,  ///< "<|im_start|>ROLE\nTEXT<|im_end|>\n": Qwen and many others
  llama3,  ///< "<|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>", TEXT without white space at its ends
};

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string text;
  std::string question = {};  ///< goes on after the text, in tokens of its own; empty: nothing does
};

/// "chatml" or "llama3"; none for another name.
[[nodiscard]] std::optional<ChatFormat> chat_format_named(std::string_view name);
/// The format whose markers the vocabulary has.
[[nodiscard]] std::optional<ChatFormat> chat_format_of(const Tokenizer& tokenizer);
/// The text of the token that ends a turn.
[[nodiscard]] std::string_view end_of_turn(ChatFormat format);

/// Ids of a conversation up to where the assistant begins to write. first: it opens the session, so BOS comes in front
/// (always for llama3, for chatml where the file asks for it); else it goes on after an answer that ended with its
/// end token. Markers in texts are text: what a user typed never ends a turn. Error(invalid_argument) where the
/// vocabulary lacks a marker, or for another role. `question`, where it is not null, gets the place of the last
/// question's first id, or 0 where no message has one.
[[nodiscard]] std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                                    std::span<const ChatMessage> messages, bool first,
                                                    std::size_t* question = nullptr);

}  // namespace headwater::runtime
