#include "cli/commands/serve/api_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "runtime/support/json_levels.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::cli {
namespace {

using Value = nlohmann::json;
using runtime::CompletionRequest;

constexpr int kMostDepth = 64;
constexpr std::int64_t kMostCount = (std::int64_t{1} << 31) - 1;
constexpr std::size_t kMostStops = 16;
constexpr std::size_t kMostStopBytes = 256;
constexpr std::size_t kMostPrompts = 16;
constexpr std::size_t kMostBiases = 1024;
constexpr std::size_t kMostTools = 128;
constexpr std::size_t kMostToolBytes = std::size_t{256} << 10U;  // of JSON

/// Where parse_body() keeps the order of an object's keys, as a list. No key of a schema begins so.
constexpr const char* kOrder = "\n order";

[[noreturn]] void refuse(const std::string& param, const std::string& message, const char* code = "") {
  throw ApiError(400, message, "invalid_request_error", param, code);
}

/// What stands in a request, short; lists and objects by their kind.
std::string shown(const Value& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  return one_line(value.dump(-1, ' ', true, Value::error_handler_t::replace), 80);
}

/// The fields of an object: each is read with what is allowed; null counts as absent.
class Fields {
 public:
  explicit Fields(const Value& object, std::string within = {})
      : object_(object), within_(std::move(within)) {}

  [[nodiscard]] const Value* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] std::optional<std::int64_t> integer(const char* key, std::int64_t least,
                                                    std::int64_t most) const {
    const Value* const value = find(key);
    if (value == nullptr) return std::nullopt;
    // JSON of other languages may write 8 as 8.0.
    const bool whole = value->is_number() && value->get<double>() == std::floor(value->get<double>()) &&
                       std::abs(value->get<double>()) < 9e15;
    const bool wide = value->is_number_integer();
    const std::int64_t number = wide    ? value->get<std::int64_t>()
                                : whole ? static_cast<std::int64_t>(value->get<double>())
                                        : 0;
    const bool fits = (whole || wide) &&
                      !(value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{1} << 62);
    if (!fits || number < least || number > most)
      bad(key, *value, fmt::format("integers, {} .. {}", least, most));
    return number;
  }
  [[nodiscard]] std::optional<double> real(const char* key, double least, double most) const {
    const Value* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      bad(key, *value, fmt::format("numbers, {} .. {}", least, most));
    }
    return value->get<double>();
  }
  [[nodiscard]] bool boolean(const char* key, bool otherwise) const {
    const Value* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) bad(key, *value, "true or false");
    return value->get<bool>();
  }
  [[nodiscard]] std::optional<std::string> text(const char* key) const {
    const Value* const value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) bad(key, *value, "a text");
    return value->get<std::string>();
  }
  [[nodiscard]] const Value& needed(const char* key, const char* allowed) const {
    const Value* const value = find(key);
    if (value == nullptr)
      refuse(within_ + key, fmt::format("{}{} is missing; allowed: {}", within_, key, allowed));
    return *value;
  }
  [[noreturn]] void bad(const char* key, const Value& value, const std::string& allowed) const {
    refuse(within_ + key, fmt::format("{}{} is {}; allowed: {}", within_, key, shown(value), allowed));
  }

 private:
  const Value& object_;
  std::string within_;
};

std::vector<std::int32_t> read_ids(const Value& list, const char* name, const ServedModel& model) {
  std::vector<std::int32_t> ids;
  const std::int64_t size = model.tokenizer.size();
  for (const Value& one : list) {
    if (!one.is_number_integer() || one.get<std::int64_t>() < 0 || one.get<std::int64_t>() >= size) {
      refuse(name, fmt::format("{} has the token {}; allowed: 0 .. {}", name, shown(one), size - 1));
    }
    ids.push_back(static_cast<std::int32_t>(one.get<std::int64_t>()));
  }
  return ids;
}

void read_stops(const Fields& fields, CompletionRequest& request) {
  constexpr const char* kAllowed = "a text, or up to 16, of 1 .. 256 bytes each";
  const Value* const value = fields.find("stop");
  if (value == nullptr) return;
  const Value list = value->is_array() ? *value : Value::array({*value});
  if (list.size() > kMostStops) fields.bad("stop", *value, kAllowed);
  for (const Value& one : list) {
    const bool fits = one.is_string() && !one.get_ref<const std::string&>().empty() &&
                      one.get_ref<const std::string&>().size() <= kMostStopBytes;
    if (!fits) fields.bad("stop", one, kAllowed);
    request.stop.push_back(one.get<std::string>());
  }
}

void read_bias(const Fields& fields, const ServedModel& model, runtime::SamplingOptions& sampling) {
  const Value* const value = fields.find("logit_bias");
  if (value == nullptr) return;
  constexpr const char* kAllowed = "an object from token ids to -100 .. 100, at most 1024";
  if (!value->is_object() || value->size() > kMostBiases) fields.bad("logit_bias", *value, kAllowed);
  for (const auto& [key, bias] : value->items()) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool whole =
        error == std::errc() && end == key.data() + key.size() && id >= 0 && id < model.tokenizer.size();
    if (!whole || !bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      refuse("logit_bias",
             fmt::format("logit_bias has {}: {}; allowed: {}", in_quotes(key), shown(bias), kAllowed));
    }
    sampling.logit_bias.emplace_back(id, bias.get<double>());
  }
}

/// How tokens are drawn where a request does not say it.
struct Defaults {
  double temperature = 1.0;
  double top_p = 1.0;
  std::int64_t top_k = 0;
  double min_p = 0.0;
};
constexpr Defaults kLlamaServer = {0.8, 0.95, 40, 0.05};

/// The object `headwater` of a request.
void read_own(const Value& object, CompletionRequest& request) {
  constexpr std::array kKeys = {"dense", "dense_tail", "rule", "memory", "cache", "atlas"};
  for (const auto& [key, value] : object.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    refuse("headwater",
           fmt::format("headwater.{} is not known; allowed: {}", one_line(key, 80), fmt::join(kKeys, ", ")));
  }
  const Fields fields(object, "headwater.");
  request.rule.dense = fields.boolean("dense", false);
  request.rule.memory = fields.integer("memory", 1, kMostCount);
  if (const std::optional<std::string> name = fields.text("rule")) {
    const std::map<std::string, Select> rules = {
        {"h2o", Select::h2o}, {"blocks", Select::blocks}, {"sketches", Select::sketches}};
    const auto found = rules.find(*name);
    if (found == rules.end()) fields.bad("rule", object["rule"], "h2o, blocks, sketches");
    request.rule.select = found->second;
  }
  request.dense_tail = fields.integer("dense_tail", 0, kMostCount);
  request.use_cache = fields.boolean("cache", request.use_cache);
  request.atlas = fields.boolean("atlas", false);
}

/// What all forms have in common.
CompletionRequest read_common(const Fields& fields, const ServedModel& model,
                              const Defaults& otherwise = {}) {
  constexpr double kHuge = 1e9;
  CompletionRequest request;
  runtime::SamplingOptions& sampling = request.sampling;
  sampling.temperature = fields.real("temperature", 0, 2).value_or(otherwise.temperature);
  sampling.top_p = fields.real("top_p", 0, 1).value_or(otherwise.top_p);
  sampling.top_k = fields.integer("top_k", -1, kMostCount).value_or(otherwise.top_k);
  sampling.top_k = std::max<std::int64_t>(sampling.top_k, 0);
  sampling.min_p = fields.real("min_p", 0, 1).value_or(otherwise.min_p);
  sampling.presence_penalty = fields.real("presence_penalty", -2, 2).value_or(0.0);
  sampling.frequency_penalty = fields.real("frequency_penalty", -2, 2).value_or(0.0);
  for (const char* key : {"repetition_penalty", "repeat_penalty"}) {
    sampling.repeat_penalty = fields.real(key, 1e-3, kHuge).value_or(sampling.repeat_penalty);
  }
  sampling.repeat_last = fields.integer("repeat_last_n", -1, kMostCount).value_or(sampling.repeat_last);
  if (sampling.repeat_last < 0) sampling.repeat_last = kMostCount;
  const std::int64_t seed =
      fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 62).value_or(-1);
  sampling.seed = seed >= 0 ? static_cast<std::uint64_t>(seed) : std::random_device()();
  read_bias(fields, model, sampling);
  read_stops(fields, request);
  request.ignore_end = fields.boolean("ignore_eos", false);
  request.use_cache = fields.boolean("cache_prompt", true);
  if (const Value* const own = fields.find("headwater")) {
    if (!own->is_object()) fields.bad("headwater", *own, "an object");
    read_own(*own, request);
  }
  return request;
}

std::int64_t read_most(const Fields& fields, std::initializer_list<const char*> keys,
                       const ServedModel& model) {
  std::int64_t most = -1;
  for (const char* key : keys) most = fields.integer(key, -1, kMostCount).value_or(most);
  if (model.max_tokens < 0) return most;
  return most < 0 ? model.max_tokens : std::min(most, model.max_tokens);
}

/// What of a request's size can be said before it waits.
void check_prompt(const std::vector<std::int32_t>& ids, const char* name, const ServedModel& model) {
  if (ids.empty()) refuse(name, fmt::format("{} has no token; allowed: one or more", name));
  const auto n = std::ssize(ids);
  if (n < model.context) return;
  refuse(
      name,
      fmt::format("{} has {} tokens, but the context {}; allowed: fewer than that", name, n, model.context),
      "context_length_exceeded");
}

void refuse_what_is_missing(const Fields& fields, bool tools = false) {
  const Value* const given = tools ? nullptr : fields.find("tools");
  if (given != nullptr && !(given->is_array() && given->empty()))
    refuse("tools", "tools are not supported here; allowed: in /v1/chat/completions");
  for (const char* key : {"functions", "function_call"}) {
    if (fields.find(key) != nullptr) refuse(key, fmt::format("{} is not supported; allowed: tools", key));
  }
  for (const char* key : {"audio", "prediction", "suffix"}) {
    const Value* const value = fields.find(key);
    const bool none =
        value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty());
    if (!none) refuse(key, fmt::format("{} is not supported; allowed: none", key));
  }
  if (fields.boolean("echo", false)) refuse("echo", "echo is true; allowed: false");
  if (const auto best = fields.integer("best_of", 1, 1000); best && *best > 1)
    refuse("best_of", "best_of is not supported; allowed: 1");
}

std::string read_content(const Value& message, const char* name, const std::string& place,
                         bool may_be_absent) {
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) {
    if (may_be_absent) return {};
    refuse(name, fmt::format("{}.content is missing; allowed: a text", place));
  }
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array())
    refuse(name, fmt::format("{}.content is {}; allowed: a text, or parts", place, shown(*found)));
  std::string text;
  for (const Value& part : *found) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : "";
    const bool is_text = type == "text" || type == "input_text" || type == "output_text";
    if (!is_text || !part.contains("text") || !part["text"].is_string()) {
      refuse(name, fmt::format("{}.content has a part of type {}; allowed: text", place, in_quotes(type)));
    }
    if (!text.empty()) text += '\n';
    text += part["text"].get<std::string>();
  }
  return text;
}

/// The same in the order in which tools are written by hand, and so in what models were trained on: a parse that is quick for any
/// body has lost it. Names of properties come as they came in.
nlohmann::ordered_json in_order(const Value& value) {
  if (value.is_array()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Value& one : value) list.push_back(in_order(one));
    return list;
  }
  if (!value.is_object()) return nlohmann::ordered_json(value);
  constexpr std::array kFirst = {"id",         "type",       "function", "name", "description",
                                 "parameters", "properties", "items",    "enum", "required"};
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  // Not object[key], which looks at all keys before.
  auto& pairs = object.get_ref<nlohmann::ordered_json::object_t&>();
  const auto order = value.find(kOrder);
  const auto is_key = [&](const Value& key) {
    return key.is_string() && value.contains(key.get_ref<const std::string&>());
  };
  if (order != value.end() && order->is_array() && std::all_of(order->begin(), order->end(), is_key)) {
    for (const Value& key : *order)
      pairs.emplace_back(key.get<std::string>(), in_order(value[key.get_ref<const std::string&>()]));
    return object;
  }
  for (const char* key : kFirst) {
    if (value.contains(key)) pairs.emplace_back(key, in_order(value[key]));
  }
  for (const auto& [key, one] : value.items()) {
    if (std::find(kFirst.begin(), kFirst.end(), key) == kFirst.end()) pairs.emplace_back(key, in_order(one));
  }
  return object;
}

/// JSON text of a part of a request, checked for its size before it is put in order.
std::string text_in_order(const Value& value, const char* name) {
  if (value.dump(-1, ' ', false, Value::error_handler_t::replace).size() > kMostToolBytes) {
    refuse(name, fmt::format("{} has too much JSON; allowed: {} bytes", name, kMostToolBytes));
  }
  return in_order(value).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// `tools` as a JSON text for the template, and their names; empty where an answer may call none.
std::string read_tools(const Fields& fields, const ServedModel& model, ApiRequest& request) {
  const Value* const tools = fields.find("tools");
  const Value* const choice = fields.find("tool_choice");
  if (tools == nullptr || (choice != nullptr && *choice == "none")) return {};
  if (!tools->is_array() || tools->size() > kMostTools) {
    fields.bad("tools", *tools, fmt::format("a list of at most {} functions", kMostTools));
  }
  if (tools->empty()) return {};
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const Value& tool = (*tools)[i];
    const bool function = tool.is_object() && tool.value("type", Value()) == "function" &&
                          tool.contains("function") && tool["function"].is_object() &&
                          tool["function"].contains("name") && tool["function"]["name"].is_string();
    if (!function) {
      refuse("tools",
             fmt::format("tools[{}] is {}; allowed: an object of type \"function\" with function.name", i,
                         shown(tool)));
    }
    request.tools.push_back(tool["function"]["name"].get<std::string>());
  }
  if (model.chat != nullptr && model.chat->tools() == runtime::ChatTemplate::Tools::none)
    refuse("tools", "the model's chat template knows no tools; allowed: none");
  return text_in_order(*tools, "tools");
}

/// A grammar made from what a request says; what is wrong with it is the field's error.
std::shared_ptr<const runtime::Grammar> grammar_of(
    const std::string& param, const std::function<std::shared_ptr<const runtime::Grammar>()>& make) {
  try {
    return make();
  } catch (const Error& error) {
    refuse(param, fmt::format("{}: {}", param, error.what()));
  }
}

std::shared_ptr<const runtime::Grammar> schema_grammar(const std::string& param, const Value& schema) {
  if (!schema.is_object() && !schema.is_boolean())
    refuse(param, fmt::format("{} is {}; allowed: an object", param, shown(schema)));
  const std::string text = text_in_order(schema, param.c_str());
  return grammar_of(param, [&] { return runtime::Grammar::json_schema(text); });
}

/// What the answer may be, where the request says it.
void read_answer(const Fields& fields, const ServedModel& model, CompletionRequest& request) {
  std::shared_ptr<const runtime::Grammar> grammar;
  std::string given;
  const auto take = [&](const std::string& param, std::shared_ptr<const runtime::Grammar> one) {
    if (grammar) refuse(param, fmt::format("{} and {} are both given; allowed: one of them", given, param));
    grammar = std::move(one);
    given = param;
  };
  if (const auto text = fields.text("grammar"); text && !text->empty())
    take("grammar", grammar_of("grammar", [&] { return runtime::Grammar::gbnf(*text); }));
  if (const Value* const schema = fields.find("json_schema");
      schema != nullptr && !(schema->is_string() && schema->get_ref<const std::string&>().empty()))
    take("json_schema", schema_grammar("json_schema", *schema));
  for (const std::string key : {"response_format", "text"}) {
    const Value* format = fields.find(key.c_str());
    if (format != nullptr && format->is_object() && format->contains("format")) format = &(*format)["format"];
    if (format == nullptr || !format->is_object() || !format->contains("type")) continue;
    const Value& type = (*format)["type"];
    // OpenAI's chats have the schema one level below, its responses and llama-server here.
    const Value* schema = format->contains("json_schema") ? &(*format)["json_schema"] : format;
    schema = schema->is_object() && schema->contains("schema") ? &(*schema)["schema"] : nullptr;
    if (type == "json_schema" || (type == "json_object" && schema != nullptr)) {
      if (schema == nullptr)
        refuse(key, fmt::format("{} has no schema; allowed: {{\"type\": \"json_schema\", \"json_schema\": "
                                "{{\"schema\": {{...}}}}}}",
                                key));
      take(key, schema_grammar(key, *schema));
    } else if (type == "json_object") {
      take(key, runtime::Grammar::json_object());
    } else if (type != "text") {
      fields.bad(key.c_str(), type, "text, json_object, json_schema");
    }
  }
  if (!grammar) return;
  if (request.ignore_end)
    refuse(given, fmt::format("{} and ignore_eos are both given; allowed: one of them", given));
  request.sampling.answer = {std::move(grammar), model.texts};
}

const runtime::ChatTemplate& chat_of(const ServedModel& model) {
  if (model.chat == nullptr)
    refuse("messages", "the model has no chat template; allowed: /v1/completions, or --chat-template");
  return *model.chat;
}

/// The call of a tool that `tool_choice` asks for: one, in the form that the template has shown to the model.
void read_tool_choice(const Fields& fields, const ServedModel& model, const ApiRequest& asked,
                      CompletionRequest& request) {
  constexpr const char* kAllowed = "\"auto\", \"none\", \"required\", or a function of tools";
  const Value* const choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto" || *choice == "none") return;
  std::string name;
  if (choice->is_object() && choice->contains("function") && (*choice)["function"].is_object() &&
      (*choice)["function"].contains("name") && (*choice)["function"]["name"].is_string()) {
    name = (*choice)["function"]["name"].get<std::string>();
  } else if (*choice != "required") {
    fields.bad("tool_choice", *choice, kAllowed);
  }
  const bool known = std::find(asked.tools.begin(), asked.tools.end(), name) != asked.tools.end();
  if (asked.tools.empty() || (!name.empty() && !known))
    refuse("tool_choice", fmt::format("tool_choice asks for {}, which is not in tools; allowed: {}",
                                      name.empty() ? "a tool" : in_quotes(name), kAllowed));
  if (request.sampling.answer.grammar)
    refuse("tool_choice",
           "tool_choice asks for a call, and another field for a form of the answer; allowed: one of them");
  using Tools = runtime::ChatTemplate::Tools;
  const Tools form = chat_of(model).tools();
  const char* const key = form == Tools::parameters ? "parameters" : "arguments";
  Value calls = Value::array();
  for (const Value& tool : *fields.find("tools")) {
    const Value& function = tool["function"];
    if (!name.empty() && function["name"] != name) continue;
    Value parameters = function.value("parameters", Value::object());
    if (!parameters.is_object()) parameters = Value::object();
    constexpr std::array kTyped = {"type", "$ref", "allOf", "anyOf", "oneOf"};
    if (std::none_of(kTyped.begin(), kTyped.end(), [&](const char* one) { return parameters.contains(one); }))
      parameters["type"] = "object";
    parameters["$id"] = "tool";  // its references are about itself
    calls.push_back({{"type", "object"},
                     {"properties",
                      {{"name", {{"const", function["name"]}}}, {key, parameters}, {kOrder, {"name", key}}}},
                     {"required", {"name", key}}});
  }
  const std::string text = text_in_order({{"anyOf", calls}}, "tools");
  const bool tagged = form == Tools::tagged;
  request.sampling.answer = {grammar_of("tools",
                                        [&] {
                                          return runtime::Grammar::json_schema(
                                              text, tagged ? "<tool_call>\n" : "",
                                              tagged ? "\n</tool_call>" : "");
                                        }),
                             model.texts};
}

std::vector<runtime::ChatMessage> read_messages(const Value& list, const char* name) {
  if (!list.is_array() || list.empty())
    refuse(name, fmt::format("{} is {}; allowed: a list of one or more", name, shown(list)));
  std::vector<runtime::ChatMessage> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Value& one = list[i];
    const std::string place = fmt::format("{}[{}]", name, i);
    if (!one.is_object()) refuse(name, fmt::format("{} is {}; allowed: an object", place, shown(one)));
    std::string role = one.contains("role") && one["role"].is_string() ? one["role"].get<std::string>() : "";
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      refuse(name, fmt::format("{}.role is {}; allowed: system, developer, user, assistant, tool", place,
                               in_quotes(role)));
    }
    messages.push_back({role, read_content(one, name, place, role == "assistant")});
    runtime::ChatMessage& message = messages.back();
    const Fields fields(one, place + ".");
    if (role == "tool") {
      message.tool_call_id = fields.text("tool_call_id").value_or("");
      message.name = fields.text("name").value_or("");
    } else if (const Value* const calls = role == "assistant" ? fields.find("tool_calls") : nullptr) {
      if (!calls->is_array()) fields.bad("tool_calls", *calls, "a list");
      if (!calls->empty()) message.tool_calls = text_in_order(*calls, "tool_calls");
    }
  }
  return messages;
}

std::vector<std::int32_t> ids_of_chat(const std::vector<runtime::ChatMessage>& messages,
                                      const ServedModel& model, const std::string& tools = {}) {
  try {
    return chat_of(model).begin(messages, tools).ids;
  } catch (const Error& error) {
    refuse("messages", error.what());
  }
}

std::vector<std::int32_t> ids_of_text(const std::string& text, const ServedModel& model) {
  return model.tokenizer.encode(text, true, true);
}

/// A prompt: a text, ids, or a list of these.
std::vector<std::vector<std::int32_t>> read_prompts(const Value& value, const ServedModel& model) {
  const auto is_ids = [](const Value& one) {
    return one.is_array() && !one.empty() &&
           std::all_of(one.begin(), one.end(), [](const Value& id) { return id.is_number(); });
  };
  const bool single = value.is_string() || is_ids(value);
  const Value list = single ? Value::array({value}) : value;
  if (!list.is_array() || list.empty() || list.size() > kMostPrompts)
    refuse("prompt", fmt::format("prompt is {}; allowed: a text, token ids, or a list of 1 .. {} of them",
                                 shown(value), kMostPrompts));
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Value& one : list) {
    if (!one.is_string() && !is_ids(one))
      refuse("prompt", fmt::format("prompt has {}; allowed: a text, or token ids", shown(one)));
    prompts.push_back(one.is_string() ? ids_of_text(one.get<std::string>(), model)
                                      : read_ids(one, "prompt", model));
    check_prompt(prompts.back(), "prompt", model);
  }
  return prompts;
}

void read_form(const Fields& fields, const ServedModel& model, ApiRequest& request) {
  request.stream = fields.boolean("stream", false);
  request.return_progress = fields.boolean("return_progress", false);
  request.n = static_cast<int>(fields.integer("n", 1, model.most_choices).value_or(1));
  if (const Value* const options = fields.find("stream_options")) {
    if (!options->is_object()) fields.bad("stream_options", *options, "an object");
    request.include_usage = Fields(*options, "stream_options.").boolean("include_usage", false);
  }
}

/// A parse that keeps the order of what stands inside "properties", under kOrder.
Value parse_schemas(std::string_view text) {
  struct Level {
    std::string key = {};  // that was read last
    bool kept = false;
    Value order = Value::array();
  };
  std::vector<Level> levels(1);
  return Value::parse(text, [&](int, Value::parse_event_t event, Value& parsed) {
    using Event = Value::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      const bool kept = event == Event::object_start && levels.back().key == "properties";
      levels.push_back({{}, kept});
    } else if (event == Event::key) {
      levels.back().key = parsed.get<std::string>();
      if (levels.back().kept) levels.back().order.push_back(parsed);
    } else if (event == Event::object_end || event == Event::array_end) {
      if (levels.back().kept) parsed[kOrder] = std::move(levels.back().order);
      levels.pop_back();
    }
    return true;
  });
}

}  // namespace

nlohmann::ordered_json ApiError::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Value(nullptr) : Value(text); };
  return {{"error",
           {{"message", message_}, {"type", type_}, {"param", or_null(param_)}, {"code", or_null(code_)}}}};
}

Value parse_body(std::string_view text) {
  // More than the stack is trusted with.
  if (runtime::json_levels(text) > kMostDepth)
    refuse("", fmt::format("the body has more than {} levels; allowed: as many", kMostDepth));
  Value json;
  try {
    json = text.find("\"properties\"") == std::string_view::npos ? Value::parse(text) : parse_schemas(text);
  } catch (const Value::parse_error& error) {
    refuse("", fmt::format("the body is no JSON in UTF-8 at byte {}; allowed: an object", error.byte));
  } catch (const Value::out_of_range&) {
    refuse("", "the body has a number that is too large; allowed: those of 64 bits");
  }
  if (!json.is_object()) refuse("", "the body is no JSON object; allowed: {...}");
  return json;
}

ApiRequest parse_chat(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  refuse_what_is_missing(fields, true);
  ApiRequest request;
  request.form = ApiRequest::Form::chat;
  read_form(fields, model, request);
  CompletionRequest one = read_common(fields, model);
  read_answer(fields, model, one);
  one.max_tokens = read_most(fields, {"max_tokens", "max_completion_tokens"}, model);
  const std::optional<std::int64_t> top = fields.integer("top_logprobs", 0, 20);
  if (fields.boolean("logprobs", false)) {
    one.top_logprobs = static_cast<int>(top.value_or(0));
  } else if (top) {
    fields.bad("top_logprobs", *fields.find("top_logprobs"), "absent without logprobs");
  }
  const std::string tools = read_tools(fields, model, request);
  read_tool_choice(fields, model, request, one);
  one.prompt = ids_of_chat(read_messages(fields.needed("messages", "a list of one or more"), "messages"),
                           model, tools);
  check_prompt(one.prompt, "messages", model);
  request.prompts.push_back(std::move(one));
  return request;
}

ApiRequest parse_text(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  refuse_what_is_missing(fields);
  ApiRequest request;
  request.form = ApiRequest::Form::text;
  read_form(fields, model, request);
  CompletionRequest one = read_common(fields, model);
  read_answer(fields, model, one);
  one.max_tokens = read_most(fields, {"max_tokens"}, model);
  if (fields.find("max_tokens") == nullptr && model.max_tokens < 0) one.max_tokens = 16;  // OpenAI's default
  if (const auto top = fields.integer("logprobs", 0, 20)) one.top_logprobs = static_cast<int>(*top);
  for (std::vector<std::int32_t>& ids :
       read_prompts(fields.needed("prompt", "a text, or token ids"), model)) {
    request.prompts.push_back(one);
    request.prompts.back().prompt = std::move(ids);
  }
  return request;
}

ApiRequest parse_native(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  refuse_what_is_missing(fields);
  ApiRequest request;
  request.form = ApiRequest::Form::native;
  read_form(fields, model, request);
  if (request.n != 1) fields.bad("n", *fields.find("n"), "1");
  CompletionRequest one = read_common(fields, model, kLlamaServer);
  read_answer(fields, model, one);
  one.max_tokens = read_most(fields, {"n_predict", "max_tokens"}, model);
  if (const auto top = fields.integer("n_probs", 0, 100); top && *top > 0)
    one.top_logprobs = static_cast<int>(*top);
  std::vector<std::vector<std::int32_t>> prompts =
      read_prompts(fields.needed("prompt", "a text, or token ids"), model);
  if (prompts.size() != 1) fields.bad("prompt", *fields.find("prompt"), "one prompt");
  one.prompt = std::move(prompts.front());
  request.prompts.push_back(std::move(one));
  return request;
}

ApiRequest parse_responses(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  refuse_what_is_missing(fields);
  if (fields.find("previous_response_id") != nullptr) {
    refuse("previous_response_id",
           "previous_response_id is not supported; allowed: the whole conversation as input");
  }
  ApiRequest request;
  request.form = ApiRequest::Form::responses;
  read_form(fields, model, request);
  if (request.n != 1) fields.bad("n", *fields.find("n"), "1");
  CompletionRequest one = read_common(fields, model);
  read_answer(fields, model, one);
  one.max_tokens = read_most(fields, {"max_output_tokens"}, model);
  std::vector<runtime::ChatMessage> messages;
  if (const auto system = fields.text("instructions")) messages.push_back({"system", *system});
  const Value& input = fields.needed("input", "a text, or a list of messages");
  if (input.is_string()) {
    messages.push_back({"user", input.get<std::string>()});
  } else {
    for (runtime::ChatMessage& message : read_messages(input, "input"))
      messages.push_back(std::move(message));
  }
  one.prompt = ids_of_chat(messages, model);
  check_prompt(one.prompt, "input", model);
  request.prompts.push_back(std::move(one));
  return request;
}

nlohmann::ordered_json tokenize(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  const Value& content = fields.needed("content", "a text");
  if (!content.is_string()) fields.bad("content", content, "a text");
  Value tokens = Value::array();
  const bool pieces = fields.boolean("with_pieces", false);
  for (const std::int32_t id :
       model.tokenizer.encode(content.get<std::string>(), fields.boolean("add_special", false),
                              fields.boolean("parse_special", true))) {
    if (pieces) {
      const std::string piece = model.tokenizer.piece(id);
      // A part of a character is no text: its bytes.
      const bool whole = !runtime::first_ill_formed_utf8(piece);
      tokens.push_back(
          {{"id", id},
           {"piece", whole ? Value(piece) : Value(std::vector<std::uint8_t>(piece.begin(), piece.end()))}});
    } else {
      tokens.push_back(id);
    }
  }
  return {{"tokens", tokens}};
}

nlohmann::ordered_json detokenize(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  const Value& tokens = fields.needed("tokens", "a list of token ids");
  if (!tokens.is_array()) fields.bad("tokens", tokens, "a list of token ids");
  return {{"content", model.tokenizer.decode(read_ids(tokens, "tokens", model))}};
}

nlohmann::ordered_json apply_template(const Value& body, const ServedModel& model) {
  const Fields fields(body);
  const std::vector<runtime::ChatMessage> messages =
      read_messages(fields.needed("messages", "a list of one or more"), "messages");
  try {
    ApiRequest request;
    const std::string tools = read_tools(fields, model, request);
    return {{"prompt", chat_of(model).rendered(messages, true, std::time(nullptr), tools)}};
  } catch (const Error& error) {
    refuse("messages", error.what());
  }
}

}  // namespace headwater::cli
