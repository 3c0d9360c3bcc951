#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/completion.hpp"
#include "runtime/tokenizer/chat.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::cli {

/// A request that cannot be answered.
class ApiError : public std::exception {
 public:
  /// `message`: one line; `type` as OpenAI has them: "invalid_request_error", "authentication_error", "not_found_error",
  /// "rate_limit_error", "server_error"; `param`: the field that it is about, `code`: a name for programs, or empty.
  ApiError(int status, std::string message, std::string type, std::string param = {}, std::string code = {})
      : status_(status),
        message_(std::move(message)),
        type_(std::move(type)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  [[nodiscard]] int status() const { return status_; }
  /// OpenAI's {"error": {...}}.
  [[nodiscard]] nlohmann::ordered_json body() const;
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  int status_;
  std::string message_, type_, param_, code_;
};

/// The model as requests see it.
struct ServedModel {
  std::string name;
  const runtime::Tokenizer& tokenizer;
  const runtime::ChatTemplate* chat = nullptr;            ///< null: the file has none
  std::int64_t context = 0;                               ///< tokens
  std::int64_t max_tokens = -1;                           ///< most of an answer; -1: as many as fit
  int most_choices = 1;                                   ///< of `n`
  std::shared_ptr<const runtime::TokenTexts> texts = {};  ///< of the tokenizer, for grammars
};

/// What a request asks for.
struct ApiRequest {
  enum class Form : std::uint8_t { chat, text, native, responses };
  Form form = Form::chat;
  std::vector<runtime::CompletionRequest> prompts;
  int n = 1;                       ///< answers to each
  std::vector<std::string> tools;  ///< names of those that an answer may call
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;
};

/// JSON of at most 64 levels, an object. Error 400 for anything else. Not ordered_json, which compares each key of an object
/// with all before it: a body of a megabyte would take seconds. The order of the keys inside "properties" of a schema is kept
/// beside them, for the functions below.
[[nodiscard]] nlohmann::json parse_body(std::string_view text);

// Errors: ApiError, which names the field, what it is and what is allowed. Fields that are not known are left out of account,
// those inside "headwater" are refused.
/// POST /v1/chat/completions.
[[nodiscard]] ApiRequest parse_chat(const nlohmann::json& body, const ServedModel& model);
/// POST /v1/completions.
[[nodiscard]] ApiRequest parse_text(const nlohmann::json& body, const ServedModel& model);
/// POST /completion, llama-server's own.
[[nodiscard]] ApiRequest parse_native(const nlohmann::json& body, const ServedModel& model);
/// POST /v1/responses, as far as it is a chat.
[[nodiscard]] ApiRequest parse_responses(const nlohmann::json& body, const ServedModel& model);

/// POST /tokenize, /detokenize, /apply-template: what they answer.
[[nodiscard]] nlohmann::ordered_json tokenize(const nlohmann::json& body, const ServedModel& model);
[[nodiscard]] nlohmann::ordered_json detokenize(const nlohmann::json& body, const ServedModel& model);
[[nodiscard]] nlohmann::ordered_json apply_template(const nlohmann::json& body, const ServedModel& model);

}  // namespace headwater::cli
