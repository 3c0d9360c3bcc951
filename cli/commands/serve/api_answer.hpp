#pragma once

#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/serve/api_request.hpp"
#include "cli/commands/serve/tool_calls.hpp"
#include "runtime/serve/completion.hpp"

namespace headwater::cli {

/// As answers carry it. Texts of single tokens may be parts of a character.
std::string text_of(const nlohmann::ordered_json& json);

/// A server-sent event.
struct ServerEvent {
  std::string event;  ///< its name; empty: it has none
  std::string data;   ///< one line
};

/// Writes what the scheduler says of a request in the form that was asked for: as events, or, once all is said, as one object.
class AnswerWriter {
 public:
  /// `id`: of the answer; `created`: its time. The model outlives it.
  AnswerWriter(const ApiRequest& asked, const ServedModel& model, std::string id, std::time_t created);

  /// Takes an event of answer `choice`, 0 .. prompts * n - 1, and returns what a stream says of it.
  [[nodiscard]] std::vector<ServerEvent> on_event(int choice, const runtime::Completion::Event& said,
                                                  const runtime::CompletionFacts& facts);
  /// What a stream says once all answers have ended.
  [[nodiscard]] std::vector<ServerEvent> end();
  /// The answer that is no stream, once all have ended.
  [[nodiscard]] std::string whole() const;

 private:
  using Json = nlohmann::ordered_json;
  struct Choice {
    std::string text;
    std::optional<ToolReader> tools;  // where the request has some
    std::vector<runtime::GeneratedToken> tokens;
    runtime::Completion::End end = runtime::Completion::End::none;
    std::string error;
    runtime::CompletionFacts facts;
    bool begun = false;       // a stream has said who speaks
    std::int64_t offset = 0;  // of the next token's text, in characters
  };

  [[nodiscard]] Json head(const char* object) const;
  [[nodiscard]] Json usage() const;
  [[nodiscard]] Json logprobs(Choice& choice, const std::vector<runtime::GeneratedToken>& tokens) const;
  [[nodiscard]] Json choice_of(int index, const Json& content, const runtime::Completion::Event& event);
  [[nodiscard]] Json native(const Choice& choice) const;
  [[nodiscard]] Json response(bool done) const;
  /// `tool_calls`; null where the answer has none.
  [[nodiscard]] Json calls_of(const Choice& choice, int index, bool numbered) const;
  void add_facts(Json& json, const runtime::CompletionFacts& facts) const;
  [[nodiscard]] std::vector<ServerEvent> response_events(const Choice& choice,
                                                         const runtime::Completion::Event& event);

  ApiRequest::Form form_;
  bool include_usage_;
  bool return_progress_;
  int n_;
  const ServedModel& model_;
  std::string id_;
  std::time_t created_;
  std::vector<Choice> choices_;
  int sequence_ = 0;  // of the events of /v1/responses
};

}  // namespace headwater::cli
