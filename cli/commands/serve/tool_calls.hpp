#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headwater::cli {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< a JSON object
};

/// Finds calls of tools in what a model writes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Qwen, Hermes, SmolLM),
/// or an answer that is nothing but such an object or a list of them (Llama 3, whose key is "parameters"; Mistral). What only
/// looks like a call, or names no tool of the request, is text.
class ToolReader {
 public:
  explicit ToolReader(std::vector<std::string> names) : names_(std::move(names)) {}

  /// What of the answer so far, `more` its end, is text for certain and was not returned before.
  [[nodiscard]] std::string push(std::string_view more);
  /// The answer is over: text that was held back. calls() are complete.
  [[nodiscard]] std::string finish();
  [[nodiscard]] const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  /// Adds the calls that a JSON text stands for; false: it stands for none.
  bool read(std::string_view text);

  std::vector<std::string> names_;
  std::string held_;
  bool began_ = false;  // with text that is no call
  std::vector<ToolCall> calls_;
};

}  // namespace headwater::cli
