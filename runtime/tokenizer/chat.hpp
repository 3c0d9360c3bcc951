#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

namespace jinja {
struct Node;
struct Text;
}  // namespace jinja

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant" or "tool"
  std::string text;
  std::string question = {};  ///< goes on after the text, in tokens of its own; empty: nothing does
  /// Of an assistant, as JSON: a list of {"id", "type": "function", "function": {"name", "arguments"}}, as OpenAI has it.
  std::string tool_calls = {};
  std::string tool_call_id = {};  ///< of a tool: the call that it answers
  std::string name = {};          ///< of a tool
};

/// What a session is fed for a turn.
struct ChatTurn {
  std::vector<std::int32_t> ids;  ///< up to where the assistant begins to write
  std::size_t question = 0;       ///< place of the last question's first id; 0 where no message has one
  /// The template writes what was said before in another way than it was fed (it drops what a model thought, say): `ids` are
  /// the whole conversation, for an empty session.
  bool anew = false;
};

/// How a model's conversations are written: the program in Jinja that its file has, or a family that is built in: "chatml"
/// and "llama3". It runs within bounds of steps, depth and memory (docs/adr/0033-chat-templates.md). Texts of control tokens
/// are those tokens where the template wrote them, and text like any other where a message did: what a user typed never ends
/// a turn. BOS comes in front where the file asks for it and the template has not written it.
///
/// All failures are Error(invalid_argument), one line: a role other than system, user, assistant, tool; a template that is damaged,
/// not supported, too long, that refuses the conversation or does not come to an end; a family whose markers the vocabulary
/// lacks.
class ChatTemplate {
 public:
  /// `chosen`: the name of a family, or the text of a template; where it is empty the file's own template
  /// (`tokenizer.chat_template`), else the family whose markers the vocabulary has. The tokenizer must outlive it.
  ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer, std::string_view chosen = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Is it the name of a family?
  [[nodiscard]] static bool is_family(std::string_view name);

  /// How the template tells a model to call tools, as far as its text shows it.
  enum class Tools : std::uint8_t {
    none,        ///< it writes no tools
    tagged,      ///< <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    arguments,   ///< {"name": ..., "arguments": {...}}
    parameters,  ///< {"name": ..., "parameters": {...}}
  };
  [[nodiscard]] Tools tools() const { return tools_; }

  /// A conversation that opens a session. `tools`: JSON, a list of {"type": "function", "function": {"name", "description",
  /// "parameters"}}; empty: none. Their texts are text, as those of messages are.
  [[nodiscard]] ChatTurn begin(std::span<const ChatMessage> messages, std::string_view tools = {}) const;
  /// It goes on: the last of its assistant's messages is what the session holds behind the turn before, without the token
  /// that ended it. `ids` begin with what ends an answer.
  [[nodiscard]] ChatTurn go_on(std::span<const ChatMessage> messages) const;
  /// The same where the messages before are not known: another conversation stands for them. `ids` begin behind turn_end().
  [[nodiscard]] ChatTurn go_on_after_unknown(std::span<const ChatMessage> messages) const;

  /// The first control token behind an answer; none where the template writes no such token.
  [[nodiscard]] std::optional<std::int32_t> turn_end() const;

  /// What the template writes, and with `now` as the time that it may ask for. For tests.
  [[nodiscard]] std::string rendered(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                     std::time_t now, std::string_view tools = {}) const;

 private:
  [[nodiscard]] jinja::Text render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                   std::time_t now, std::size_t answer, std::string_view tools = {}) const;
  [[nodiscard]] ChatTurn encode(const jinja::Text& text, bool opens) const;

  const Tokenizer* tokenizer_;
  std::unique_ptr<const jinja::Node> root_;
  Tools tools_ = Tools::none;
  bool begins_ = false;  // with a token of its own, whatever BOS is
};

}  // namespace headwater::runtime
