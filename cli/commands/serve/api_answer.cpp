#include "cli/commands/serve/api_answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/support/text.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::cli {
namespace {

using Json = nlohmann::ordered_json;
using End = runtime::Completion::End;
using Form = ApiRequest::Form;

Json reason_of(End end, bool calls) {
  if (end == End::none) return nullptr;
  if (calls && end != End::length) return "tool_calls";
  return end == End::length ? "length" : "stop";
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

/// That begin in the text.
std::int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Json timings(const runtime::CompletionFacts& facts) {
  const auto read = static_cast<double>(facts.prompt_tokens - facts.cached_tokens);
  const auto written = static_cast<double>(facts.generated_tokens);
  const double prompt = facts.prefill_seconds;
  const double answer = facts.decode_seconds;
  const auto share = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  return {{"prompt_n", facts.prompt_tokens - facts.cached_tokens},
          {"cache_n", facts.cached_tokens},
          {"prompt_ms", 1e3 * prompt},
          {"prompt_per_token_ms", share(1e3 * prompt, read)},
          {"prompt_per_second", share(read, prompt)},
          {"predicted_n", facts.generated_tokens},
          {"predicted_ms", 1e3 * answer},
          {"predicted_per_token_ms", share(1e3 * answer, written)},
          {"predicted_per_second", share(written, answer)}};
}

Json atlas_of(const runtime::PromptAtlas& atlas) {
  Json rows = Json::array();
  for (const runtime::PromptAtlas::Row& row : atlas.rows()) rows.push_back({row.begin, row.end});
  return {{"layers", atlas.layers()},
          {"columns", atlas.columns()},
          {"column_tokens", atlas.column_tokens()},
          {"rows", rows},
          {"shares", base64(atlas.shares())}};
}

Json own_facts(const runtime::CompletionFacts& facts) {
  Json own = {{"cached_tokens", facts.cached_tokens},
              {"exact", facts.exact},
              {"pairs", {{"computed", facts.pairs.computed}, {"dense", facts.pairs.dense}}},
              {"seconds",
               {{"queued", facts.queued_seconds},
                {"prefill", facts.prefill_seconds},
                {"decode", facts.decode_seconds}}},
              {"steps", facts.steps}};
  if (facts.atlas) own["atlas"] = atlas_of(*facts.atlas);
  return own;
}

Json error_of(const std::string& message) {
  return ApiError(500, message.empty() ? "the request was cancelled" : message, "server_error").body();
}

}  // namespace

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

AnswerWriter::AnswerWriter(const ApiRequest& asked, const ServedModel& model, std::string id,
                           std::time_t created)
    : form_(asked.form),
      include_usage_(asked.include_usage),
      return_progress_(asked.return_progress),
      n_(asked.n),
      model_(model),
      id_(std::move(id)),
      created_(created),
      choices_(asked.prompts.size() * static_cast<std::size_t>(asked.n)) {
  for (Choice& choice : choices_) {
    if (!asked.tools.empty()) choice.tools.emplace(asked.tools);
  }
}

Json AnswerWriter::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

/// Of all answers: a prompt that has several counts once.
Json AnswerWriter::usage() const {
  std::int64_t prompt = 0;
  std::int64_t cached = 0;
  std::int64_t written = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const runtime::CompletionFacts& facts = choices_[i].facts;
    written += facts.generated_tokens;
    if (i % static_cast<std::size_t>(n_) != 0) continue;
    prompt += facts.prompt_tokens;
    cached += facts.cached_tokens;
  }
  if (form_ == Form::responses) {
    return {{"input_tokens", prompt},
            {"input_tokens_details", {{"cached_tokens", cached}}},
            {"output_tokens", written},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", prompt + written}};
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", written},
          {"total_tokens", prompt + written},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

Json AnswerWriter::calls_of(const Choice& choice, int index, bool numbered) const {
  if (!choice.tools || choice.tools->calls().empty()) return nullptr;
  Json list = Json::array();
  for (const ToolCall& call : choice.tools->calls()) {
    Json one = Json::object();
    if (numbered) one["index"] = list.size();
    one["id"] = fmt::format("call_{}_{}_{}", id_, index, list.size());
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(one);
  }
  return list;
}

void AnswerWriter::add_facts(Json& json, const runtime::CompletionFacts& facts) const {
  json["timings"] = timings(facts);
  json["headwater"] = own_facts(facts);
}

Json AnswerWriter::logprobs(Choice& choice, const std::vector<runtime::GeneratedToken>& tokens) const {
  if (tokens.empty()) return nullptr;
  if (form_ == Form::text) {
    Json names = Json::array();
    Json values = Json::array();
    Json best = Json::array();
    Json offsets = Json::array();
    for (const runtime::GeneratedToken& one : tokens) {
      const std::string text = model_.tokenizer.piece(one.token.id);
      names.push_back(text);
      values.push_back(one.token.logprob);
      Json top = Json::object();
      // Parts of characters may be alike as text: the best one of them stays.
      for (const runtime::TokenLogprob& other : one.best)
        top.emplace(runtime::well_formed_utf8(model_.tokenizer.piece(other.id)), other.logprob);
      best.push_back(top);
      offsets.push_back(choice.offset);
      if (!model_.tokenizer.is_control(one.token.id)) choice.offset += characters(text);
    }
    return {{"tokens", names}, {"token_logprobs", values}, {"top_logprobs", best}, {"text_offset", offsets}};
  }
  const auto entry = [&](const runtime::TokenLogprob& one) {
    const std::string text = model_.tokenizer.piece(one.id);
    Json json = {{"token", text}, {"logprob", one.logprob}, {"bytes", bytes_of(text)}};
    if (form_ == Form::native) json["id"] = one.id;
    return json;
  };
  Json list = Json::array();
  for (const runtime::GeneratedToken& one : tokens) {
    Json json = entry(one.token);
    json["top_logprobs"] = Json::array();
    for (const runtime::TokenLogprob& other : one.best) json["top_logprobs"].push_back(entry(other));
    list.push_back(json);
  }
  return form_ == Form::native ? list : Json{{"content", list}};
}

Json AnswerWriter::native(const Choice& choice) const {
  const char* const type = choice.end == End::token ? "eos" : choice.end == End::stop ? "word" : "limit";
  Json json = {{"content", ""},
               {"id_slot", -1},
               {"stop", true},
               {"model", model_.name},
               {"tokens_predicted", choice.facts.generated_tokens},
               {"tokens_evaluated", choice.facts.prompt_tokens},
               {"tokens_cached", choice.facts.cached_tokens},
               {"truncated", false},
               {"stop_type", type}};
  add_facts(json, choice.facts);
  return json;
}

/// The object of /v1/responses.
Json AnswerWriter::response(bool done) const {
  const Choice& choice = choices_.front();
  const bool whole = choice.end == End::token || choice.end == End::stop;
  const char* const status = !done                   ? "in_progress"
                             : !choice.error.empty() ? "failed"
                             : whole                 ? "completed"
                                                     : "incomplete";
  Json output = Json::array();
  if (done) {
    const Json part = {{"type", "output_text"}, {"text", choice.text}, {"annotations", Json::array()}};
    output.push_back({{"type", "message"},
                      {"id", "msg_" + id_},
                      {"status", whole ? "completed" : "incomplete"},
                      {"role", "assistant"},
                      {"content", Json::array({part})}});
  }
  Json json = {{"id", id_},
               {"object", "response"},
               {"created_at", created_},
               {"status", status},
               {"model", model_.name},
               {"output", output},
               {"error", choice.error.empty() ? Json(nullptr)
                                              : Json{{"code", "server_error"}, {"message", choice.error}}},
               {"incomplete_details", nullptr},
               {"parallel_tool_calls", false},
               {"tool_choice", "none"},
               {"tools", Json::array()}};
  if (done && !whole && choice.error.empty()) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (done) {
    json["usage"] = usage();
    add_facts(json, choice.facts);
  }
  return json;
}

/// An entry of `choices`.
Json AnswerWriter::choice_of(int index, const Json& content, const runtime::Completion::Event& event) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  Json json = {{"index", index}};
  json.update(content);
  json["logprobs"] = logprobs(choice, event.tokens);
  json["finish_reason"] = reason_of(event.end, choice.tools && !choice.tools->calls().empty());
  return json;
}

std::vector<ServerEvent> AnswerWriter::response_events(const Choice& choice,
                                                       const runtime::Completion::Event& event) {
  std::vector<ServerEvent> events;
  const auto say = [&](const char* type, const Json& json) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(json);
    events.push_back({type, text_of(data)});
  };
  const std::string item = "msg_" + id_;
  const Json place = {{"item_id", item}, {"output_index", 0}, {"content_index", 0}};
  const auto placed = [&](const Json& json) {
    Json all = place;
    all.update(json);
    return all;
  };
  const Json nothing = {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  if (!choice.begun) {
    say("response.created", {{"response", response(false)}});
    const Json message = {{"type", "message"},
                          {"id", item},
                          {"status", "in_progress"},
                          {"role", "assistant"},
                          {"content", Json::array()}};
    say("response.output_item.added", {{"output_index", 0}, {"item", message}});
    say("response.content_part.added", placed({{"part", nothing}}));
  }
  if (!event.text.empty())
    say("response.output_text.delta", placed({{"delta", event.text}, {"logprobs", Json::array()}}));
  if (event.end == End::none) return events;
  const Json whole = response(true);
  if (choice.error.empty()) {
    say("response.output_text.done", placed({{"text", choice.text}, {"logprobs", Json::array()}}));
    say("response.content_part.done", placed({{"part", whole["output"][0]["content"][0]}}));
    say("response.output_item.done", {{"output_index", 0}, {"item", whole["output"][0]}});
  }
  say(("response." + whole["status"].get<std::string>()).c_str(), {{"response", whole}});
  return events;
}

std::vector<ServerEvent> AnswerWriter::on_event(int index, const runtime::Completion::Event& said,
                                                const runtime::CompletionFacts& facts) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  runtime::Completion::Event event = said;
  if (choice.tools) {
    event.text = choice.tools->push(said.text);
    if (event.end != End::none) event.text += choice.tools->finish();
  }
  choice.text += event.text;
  choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  choice.end = event.end;
  choice.facts = facts;
  const bool failed = event.end == End::error || event.end == End::cancel;
  if (failed) choice.error = event.message.empty() ? "the request was cancelled" : event.message;

  std::vector<ServerEvent> events;
  const auto say = [&](const Json& json) { events.push_back({"", text_of(json)}); };
  if (form_ == Form::responses) {
    if (event.prompt_done > 0 && choice.begun) return events;
    events = response_events(choice, event);
    choice.begun = true;
    return events;
  }
  const char* const object = form_ == Form::chat ? "chat.completion.chunk" : "text_completion";
  if (event.prompt_done > 0) {
    if (!return_progress_) return events;
    const Json progress = {{"total", facts.prompt_tokens},
                           {"cache", facts.cached_tokens},
                           {"processed", event.prompt_done},
                           {"time_ms", 1e3 * event.prompt_seconds}};
    Json json = form_ == Form::native ? Json{{"content", ""}, {"stop", false}} : head(object);
    if (form_ != Form::native) json["choices"] = Json::array();
    json["prompt_progress"] = progress;
    say(json);
    return events;
  }
  if (failed) {
    say(error_of(choice.error));
    return events;
  }
  if (form_ == Form::native) {
    Json json = event.end == End::none ? Json{{"stop", false}} : native(choice);
    json["content"] = event.text;
    if (!event.tokens.empty()) json["completion_probabilities"] = logprobs(choice, event.tokens);
    say(json);
    return events;
  }
  Json content;
  if (form_ == Form::chat) {
    Json delta = Json::object();
    if (!choice.begun) delta["role"] = "assistant";
    if (!event.text.empty() || !choice.begun) delta["content"] = event.text;
    const Json calls = event.end == End::none ? Json(nullptr) : calls_of(choice, index, true);
    if (!calls.is_null()) delta["tool_calls"] = calls;
    content["delta"] = delta;
  } else {
    content["text"] = event.text;
  }
  choice.begun = true;
  Json json = head(object);
  json["choices"] = Json::array({choice_of(index, content, event)});
  if (event.end != End::none) add_facts(json, facts);
  say(json);
  return events;
}

std::vector<ServerEvent> AnswerWriter::end() {
  std::vector<ServerEvent> events;
  if (form_ == Form::native || form_ == Form::responses) return events;
  if (include_usage_) {
    Json json = head(form_ == Form::chat ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage();
    events.push_back({"", text_of(json)});
  }
  events.push_back({"", "[DONE]"});
  return events;
}

std::string AnswerWriter::whole() const {
  if (form_ == Form::responses) return text_of(response(true));
  if (form_ == Form::native) {
    Choice choice = choices_.front();
    Json json = native(choice);
    json["content"] = choice.text;
    if (!choice.tokens.empty()) json["completion_probabilities"] = logprobs(choice, choice.tokens);
    return text_of(json);
  }
  Json json = head(form_ == Form::chat ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice choice = choices_[i];
    Json one = {{"index", i}};
    if (form_ == Form::chat) {
      const Json calls = calls_of(choice, static_cast<int>(i), false);
      one["message"] = {{"role", "assistant"}, {"content", choice.text}};
      if (!calls.is_null()) {
        if (choice.text.empty()) one["message"]["content"] = nullptr;
        one["message"]["tool_calls"] = calls;
      }
    } else {
      one["text"] = choice.text;
    }
    choice.offset = 0;
    one["logprobs"] = logprobs(choice, choice.tokens);
    one["finish_reason"] = reason_of(choice.end, choice.tools && !choice.tools->calls().empty());
    json["choices"].push_back(one);
  }
  json["usage"] = usage();
  add_facts(json, choices_.front().facts);
  return text_of(json);
}

}  // namespace headwater::cli
