// What requests may say and what they are told; that every form of an answer is the same answer. Fuzz target `api` reads anything.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "cli/commands/serve/api_answer.hpp"
#include "cli/commands/serve/api_request.hpp"
#include "cli/commands/serve/tool_calls.hpp"
#include "runtime/generate/model_file.hpp"

namespace headwater::cli {
namespace {

using Json = nlohmann::json;
using runtime::Completion;
using ::testing::HasSubstr;

const ServedModel& model() {
  static const runtime::ModelFile file(MODELS "/headwater-tiny-f16.gguf");
  static const runtime::ChatTemplate chat(file.file(), file.tokenizer(), "chatml");
  static const ServedModel one{"tiny",
                               file.tokenizer(),
                               &chat,
                               100,
                               -1,
                               4,
                               std::make_shared<const runtime::TokenTexts>(file.tokenizer())};
  return one;
}

using Parse = ApiRequest (*)(const Json&, const ServedModel&);

/// The base with changes: a JSON merge patch.
Json with(Json base, const std::string& patch) {
  base.merge_patch(Json::parse(patch));
  return base;
}

const Json kChat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
const Json kText = {{"prompt", "def f"}};
const Json kInput = {{"input", "Hi"}};

std::string refusal(Parse parse, const Json& body, const ServedModel& of = model()) {
  try {
    (void)parse(body, of);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.body()["error"]["message"], error.what());
    return error.what();
  }
  return "accepted";
}

TEST(ApiRequest, NamesWhatIsRefusedAndWhatIsAllowed) {
  struct Case {
    Parse parse;
    const Json& base;
    const char* patch;
    const char* names;
  };
  const std::string stop17 =
      R"({"stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]})";
  const std::string stop257 = R"({"stop": ")" + std::string(257, 'a') + R"("})";
  const std::vector<Case> cases = {
      {parse_chat, kChat, R"({"messages": []})", "messages is an array; allowed"},
      {parse_chat, kChat, R"({"messages": null})", "messages is missing"},
      {parse_chat, kChat, R"({"messages": [3]})", "messages[0] is 3"},
      {parse_chat, kChat, R"({"messages": [{"role": "robot", "content": "a"}]})",
       "messages[0].role is 'robot'"},
      {parse_chat, kChat, R"({"messages": [{"role": "user"}]})", "messages[0].content is missing"},
      {parse_chat, kChat, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "'image_url'"},
      {parse_chat, kChat, R"({"temperature": 2.1})", "temperature is 2.1; allowed: numbers, 0 .. 2"},
      {parse_chat, kChat, R"({"temperature": "hot"})", "temperature is \"hot\""},
      {parse_chat, kChat, R"({"top_p": 1.01})", "top_p"},
      {parse_chat, kChat, R"({"min_p": -0.1})", "min_p"},
      {parse_chat, kChat, R"({"presence_penalty": 2.1})", "-2 .. 2"},
      {parse_chat, kChat, R"({"frequency_penalty": -2.1})", "-2 .. 2"},
      {parse_chat, kChat, R"({"repeat_penalty": 0})", "repeat_penalty"},
      {parse_chat, kChat, R"({"n": 0})", "n is 0; allowed: integers, 1 .. 4"},
      {parse_chat, kChat, R"({"n": 5})", "1 .. 4"},
      {parse_chat, kChat, R"({"max_tokens": 1.5})", "max_tokens is 1.5; allowed: integers"},
      {parse_chat, kChat, R"({"max_tokens": 99999999999})", "max_tokens"},
      {parse_chat, kChat, R"({"seed": 18446744073709551615})", "seed"},
      {parse_chat, kChat, R"({"stop": ""})", "stop"},
      {parse_chat, kChat, stop17.c_str(), "up to 16"},
      {parse_chat, kChat, stop257.c_str(), "1 .. 256"},
      {parse_chat, kChat, R"({"stop": [3]})", "stop is 3"},
      {parse_chat, kChat, R"({"top_logprobs": 2})", "without logprobs"},
      {parse_chat, kChat, R"({"logprobs": true, "top_logprobs": 21})", "0 .. 20"},
      {parse_chat, kChat, R"({"logit_bias": {"4096": 1}})", "logit_bias has '4096'"},
      {parse_chat, kChat, R"({"logit_bias": {"a": 1}})", "logit_bias has 'a'"},
      {parse_chat, kChat, R"({"logit_bias": {"5": 101}})", "-100 .. 100"},
      {parse_chat, kChat, R"({"tools": [{"type": "function"}]})", "tools[0] is an object; allowed"},
      {parse_chat, kChat, R"({"tools": 1})", "tools is 1"},
      {parse_chat, kChat, R"({"tools": [{"type": "function", "function": {"name": "f"}}]})",
       "knows no tools"},
      {parse_chat, kChat, R"({"tool_choice": "required"})",
       "tool_choice asks for a tool, which is not in tools"},
      {parse_chat, kChat, R"({"tool_choice": "any"})",
       "tool_choice is \"any\"; allowed: \"auto\", \"none\", \"required\""},
      {parse_chat, kChat, R"({"messages": [{"role": "assistant", "tool_calls": 1}]})",
       "messages[0].tool_calls is 1"},
      {parse_text, kText, R"({"tools": [1]})", "/v1/chat/completions"},
      {parse_chat, kChat, R"({"response_format": {"type": "xml"}})",
       "response_format is \"xml\"; allowed: text, json_object, json_schema"},
      {parse_chat, kChat, R"({"response_format": {"type": "json_schema"}})", "response_format has no schema"},
      {parse_chat, kChat,
       R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}})",
       "response_format: json schema: # has 'not', which is not supported"},
      {parse_chat, kChat, R"({"response_format": {"type": "json_object"}, "grammar": "root ::= [a]"})",
       "grammar and response_format are both given"},
      {parse_chat, kChat, R"({"response_format": {"type": "json_object"}, "ignore_eos": true})",
       "response_format and ignore_eos are both given"},
      {parse_responses, kInput, R"({"text": {"format": {"type": "json_schema", "schema": 3}}})", "text is 3"},
      {parse_native, kText, R"({"json_schema": {"\n order": 5, "type": 7}})", "#/type is '7'"},
      {parse_chat, kChat, R"({"stream": 1})", "stream is 1; allowed: true or false"},
      {parse_chat, kChat, R"({"stream_options": 1})", "stream_options"},
      {parse_chat, kChat, R"({"headwater": {"dens": true}})", "headwater.dens is not known"},
      {parse_chat, kChat, R"({"headwater": {"dense_tail": -1}})", "headwater.dense_tail is -1"},
      {parse_chat, kChat, R"({"headwater": {"rule": "block"}})",
       "headwater.rule is \"block\"; allowed: h2o, blocks, sketches"},
      {parse_chat, kChat, R"({"headwater": {"memory": 0}})",
       "headwater.memory is 0; allowed: integers, 1 .. 2147483647"},
      {parse_text, kText, R"({"prompt": null})", "prompt is missing"},
      {parse_text, kText, R"({"prompt": ""})", "prompt has no token"},
      {parse_text, kText, R"({"prompt": []})", "prompt is an array"},
      {parse_text, kText, R"({"prompt": [[]]})", "prompt has an array"},
      {parse_text, kText, R"({"prompt": [1, -1]})", "token -1"},
      {parse_text, kText, R"({"prompt": [4096]})", "0 .. 4095"},
      {parse_text, kText, R"({"prompt": [1.5]})", "token 1.5"},
      {parse_text, kText, R"({"prompt": {"a": 1}})", "prompt is an object"},
      {parse_text, kText, R"({"echo": true})", "echo"},
      {parse_text, kText, R"({"suffix": "end"})", "suffix is not supported"},
      {parse_text, kText, R"({"suffix": "", "grammar": ""})", "accepted"},
      {parse_text, kText, R"({"logprobs": 21})", "0 .. 20"},
      {parse_native, kText, R"({"n": 2})", "n is 2; allowed: 1"},
      {parse_native, kText, R"({"prompt": ["a", "b"]})", "one prompt"},
      {parse_native, kText, R"({"grammar": "root ::= x"})", "grammar, line 1: rule 'x'"},
      {parse_responses, kInput, R"({"previous_response_id": "a"})", "previous_response_id"},
      {parse_responses, kInput, R"({"instructions": 3})", "instructions is 3"},
  };
  for (const Case& one : cases)
    EXPECT_THAT(refusal(one.parse, with(one.base, one.patch)), HasSubstr(one.names)) << one.patch;
  ServedModel mute = model();
  mute.chat = nullptr;
  EXPECT_THAT(refusal(parse_chat, kChat, mute), HasSubstr("no chat template"));
  const std::string forced =
      R"({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"})";
  EXPECT_THAT(refusal(parse_chat, with(kChat, forced), mute), HasSubstr("no chat template"));
}

TEST(ApiRequest, BodiesOfSixtyFourLevels) {
  const auto nested = [](int levels) {
    const auto n = static_cast<std::size_t>(levels - 1);
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_TRUE(parse_body(nested(64)).is_object());
  for (const std::string& text : {nested(65), nested(1000000), std::string("[1]"), std::string("{"),
                                  std::string(), std::string("{\"a\": \"\xff\"}"), std::string("{} {}")}) {
    EXPECT_THROW((void)parse_body(text), ApiError) << text.substr(0, 20);
  }
  EXPECT_EQ(parse_body(R"({"a": "[[[[\"]]", "a": 2})")["a"], 2);
}

TEST(ApiRequest, ABodyIsReadInTimeThatGrowsWithItsSize) {
  std::string body = "{";
  for (int i = 0; i < 200000; ++i) body += "\"" + std::to_string(i) + "\":0,";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_body(body + "\"\":0}").size(), 200001U);
  // A tenth of a second; half a minute where each key is compared with all others.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  try {
    (void)parse_body(R"({"a": tru})");
  } catch (const ApiError& error) {
    EXPECT_THAT(error.what(), HasSubstr("byte 10"));
  }
}

TEST(ApiRequest, PiecesOfTokensAreTextsOrBytes) {
  const Json tokens = tokenize({{"content", "a 🙂"}, {"with_pieces", true}}, model())["tokens"];
  std::string all;
  for (const Json& one : tokens) {
    const Json& piece = one["piece"];
    if (piece.is_string()) all += piece.get<std::string>();
    if (piece.is_array())
      for (const Json& byte : piece) all += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(all, "a 🙂");
}

TEST(ApiRequest, ReadsEveryField) {
  const ApiRequest all =
      parse_chat(with(kChat, R"({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 9,
      "presence_penalty": 1, "frequency_penalty": -1, "repeat_penalty": 1.5, "repeat_last_n": -1, "logit_bias": {"5": -2},
      "max_tokens": 3, "max_completion_tokens": 4, "stop": "x", "n": 4, "stream": true, "logprobs": true, "top_logprobs": 2,
      "stream_options": {"include_usage": true}, "return_progress": true, "cache_prompt": false, "user": "somebody",
      "headwater": {"dense": true, "dense_tail": 12, "rule": "blocks", "memory": 300, "atlas": true}})"),
                 model());
  const runtime::CompletionRequest& one = all.prompts.at(0);
  EXPECT_EQ(one.sampling.temperature, 0.5);
  EXPECT_EQ(one.sampling.top_p, 0.25);
  EXPECT_EQ(one.sampling.top_k, 7);
  EXPECT_EQ(one.sampling.min_p, 0.125);
  EXPECT_EQ(one.sampling.seed, 9U);
  EXPECT_EQ(one.sampling.presence_penalty, 1);
  EXPECT_EQ(one.sampling.frequency_penalty, -1);
  EXPECT_EQ(one.sampling.repeat_penalty, 1.5);
  EXPECT_EQ(one.sampling.repeat_last, (std::int64_t{1} << 31) - 1);
  EXPECT_EQ(one.sampling.logit_bias, (std::vector<std::pair<std::int32_t, double>>{{5, -2}}));
  EXPECT_EQ(one.max_tokens, 4);
  EXPECT_EQ(one.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(one.top_logprobs, 2);
  EXPECT_EQ(one.rule, (runtime::PromptRule{true, Select::blocks, 300}));
  EXPECT_EQ(one.dense_tail, 12);
  EXPECT_FALSE(one.use_cache);
  EXPECT_TRUE(one.atlas);
  EXPECT_FALSE(parse_chat(kChat, model()).prompts.at(0).atlas);
  EXPECT_TRUE(all.stream && all.include_usage && all.return_progress);
  EXPECT_EQ(all.n, 4);
  const ApiRequest none = parse_chat(kChat, model());
  EXPECT_EQ(none.prompts[0].sampling.temperature, 1);
  EXPECT_EQ(none.prompts[0].max_tokens, -1);
  EXPECT_TRUE(none.prompts[0].use_cache);
  EXPECT_NE(none.prompts[0].sampling.seed, parse_chat(kChat, model()).prompts[0].sampling.seed);
  ServedModel short_answers = model();
  short_answers.max_tokens = 5;
  EXPECT_EQ(parse_chat(kChat, short_answers).prompts[0].max_tokens, 5);
  EXPECT_EQ(parse_chat(with(kChat, R"({"max_tokens": 6})"), short_answers).prompts[0].max_tokens, 5);
  EXPECT_EQ(parse_text(with(kText, R"({"prompt": ["a", [5, 6], "b"]})"), model()).prompts.size(), 3U);
}

/// Whether an answer to the request may be this text.
bool may_be(const ApiRequest& asked, const std::string& text) {
  const runtime::AnswerGrammar& answer = asked.prompts.at(0).sampling.answer;
  EXPECT_TRUE(answer.grammar && answer.texts);
  runtime::GrammarMatcher matcher(answer.grammar);
  runtime::GrammarMatcher::State state = matcher.begin(), next;
  for (const char byte : text) {
    if (!matcher.step(state, static_cast<std::uint8_t>(byte), next)) return false;
    std::swap(state, next);
  }
  return state.complete;
}

TEST(ApiRequest, AnswersFollowASchemaInItsOwnOrder) {
  const std::string schema =
      R"({"type": "object", "properties": {"z": {"type": "integer"}, "a": {"properties": {"y": {}, "b": {}}}}, "required": ["z", "a"]})";
  const auto body = [](const std::string& base, const std::string& field) {
    return parse_body("{" + base + ", " + field + "}");
  };
  const std::string chat = R"("messages": [{"role": "user", "content": "Hi"}])";
  const std::vector<ApiRequest> same = {
      parse_chat(body(chat, R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" +
                                schema + "}}"),
                 model()),
      parse_chat(body(chat, R"("response_format": {"type": "json_object", "schema": )" + schema + "}"),
                 model()),
      parse_text(body(R"("prompt": "a")", R"("json_schema": )" + schema), model()),
      parse_native(body(R"("prompt": "a")", R"("json_schema": )" + schema), model()),
      parse_responses(
          body(R"("input": "a")",
               R"("text": {"format": {"type": "json_schema", "name": "n", "schema": )" + schema + "}}"),
          model())};
  for (const ApiRequest& one : same) {
    EXPECT_TRUE(may_be(one, R"({"z": 1, "a": {"y": 1, "b": 2}})"));
    EXPECT_FALSE(may_be(one, R"({"a": {}, "z": 1})"));
    EXPECT_FALSE(may_be(one, R"({"z": 1, "a": {"b": 2, "y": 1}})"));
  }
  EXPECT_TRUE(may_be(parse_chat(body(chat, R"("response_format": {"type": "json_object"})"), model()),
                     R"({"q": [1]})"));
  EXPECT_TRUE(
      may_be(parse_text(body(R"("prompt": "a")", R"("grammar": "root ::= \"b\"+")"), model()), "bbb"));
  EXPECT_FALSE(parse_chat(body(chat, R"("response_format": {"type": "text"})"), model())
                   .prompts[0]
                   .sampling.answer.grammar);
}

TEST(ApiRequest, ACallOfAToolCanBeAskedFor) {
  static const runtime::ModelFile file(MODELS "/headwater-tiny-f16.gguf");
  struct Case {
    const char* shown;  // by the template
    std::string before, key, behind;
  };
  for (const Case& one : std::vector<Case>{{"<tool_call>", "<tool_call>\n", "arguments", "\n</tool_call>"},
                                           {"\"parameters\": {}", "", "parameters", ""},
                                           {"", "", "arguments", ""}}) {
    const runtime::ChatTemplate chat(file.file(), file.tokenizer(), std::string("{{ tools }}") + one.shown);
    ServedModel of = model();
    of.chat = &chat;
    of.context = 1000;
    const auto asked = [&](const std::string& choice) {
      return parse_chat(
          parse_body(R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": )" + choice + R"(,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"b": {"$ref": "#/$defs/n"}, "a": {}},
                     "required": ["b"], "$defs": {"n": {"type": "integer"}}}}},
                  {"type": "function", "function": {"name": "g", "parameters": {}}}]})"),
          of);
    };
    const auto call = [&](const std::string& name, const std::string& arguments) {
      return one.before + R"({"name": ")" + name + R"(", ")" + one.key + R"(": )" + arguments + "}" +
             one.behind;
    };
    const ApiRequest any = asked("\"required\"");
    EXPECT_TRUE(may_be(any, call("f", R"({"b": 3, "a": []})")));
    EXPECT_TRUE(may_be(any, call("g", "{}")));
    for (const std::string& other : {call("h", "{}"), call("f", "{}"), call("f", R"({"b": "3"})"),
                                     call("f", R"({"a": 1, "b": 3})"), std::string("Hi")})
      EXPECT_FALSE(may_be(any, other)) << other;
    const ApiRequest named = asked(R"({"type": "function", "function": {"name": "g"}})");
    EXPECT_TRUE(may_be(named, call("g", R"({"x": 1})")));
    EXPECT_FALSE(may_be(named, call("g", "[1]")));
    EXPECT_FALSE(may_be(named, call("f", R"({"b": 3})")));
    ToolReader reader(any.tools);
    EXPECT_EQ(reader.push(call("f", R"({"b": 3})")), "");
    EXPECT_EQ(reader.finish(), "");
    EXPECT_EQ(reader.calls().size(), 1U);
    EXPECT_FALSE(asked("\"auto\"").prompts[0].sampling.answer.grammar);
    EXPECT_THAT(
        refusal(
            [](const Json& body, const ServedModel& served) { return parse_chat(body, served); },
            parse_body(
                R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": {"type": "function", "function": {"name": "q"}},
                                     "tools": [{"type": "function", "function": {"name": "f"}}]})"),
            of),
        HasSubstr("tool_choice asks for 'q', which is not in tools"));
  }
}

TEST(ApiRequest, APromptMustLeaveRoomForAToken) {
  EXPECT_EQ(refusal(parse_text, {{"prompt", std::vector<int>(99, 5)}}), "accepted");
  EXPECT_THAT(refusal(parse_text, {{"prompt", std::vector<int>(100, 5)}}),
              HasSubstr("prompt has 100 tokens, but the context 100"));
}

TEST(AnswerWriter, StreamsAndWholeAnswersSayTheSame) {
  struct Form {
    Parse parse;
    const Json& body;
    std::string (*streamed)(const Json&);
    std::string (*whole)(const Json&);
  };
  const std::vector<Form> forms = {
      {parse_chat, kChat,
       [](const Json& c) {
         return c["choices"].empty() ? "" : c["choices"][0]["delta"].value("content", "");
       },
       [](const Json& w) { return w["choices"][0]["message"]["content"].get<std::string>(); }},
      {parse_text, kText,
       [](const Json& c) { return c["choices"].empty() ? "" : c["choices"][0].value("text", ""); },
       [](const Json& w) { return w["choices"][0]["text"].get<std::string>(); }},
      {parse_native, kText, [](const Json& c) { return c["content"].get<std::string>(); },
       [](const Json& w) { return w["content"].get<std::string>(); }},
      {parse_responses, kInput, [](const Json& c) { return c.value("delta", ""); },
       [](const Json& w) { return w["output"][0]["content"][0]["text"].get<std::string>(); }}};
  for (const Form& form : forms) {
    ApiRequest asked = form.parse(
        with(form.body, R"({"stream": true, "stream_options": {"include_usage": true}})"), model());
    AnswerWriter writer(asked, model(), "id", 5);
    runtime::CompletionFacts facts;
    facts.prompt_tokens = 10;
    facts.cached_tokens = 4;
    std::string text;
    std::vector<ServerEvent> events;
    for (const auto& [part, end] : {std::pair{"", Completion::End::none},
                                    {"Gr\u00fc", Completion::End::none},
                                    {"\u00dfe", Completion::End::length}}) {
      Completion::Event event;
      if (*part == 0) event.prompt_done = 10;  // progress, which nobody asked for
      event.text = part;
      event.end = end;
      ++facts.generated_tokens;
      for (const ServerEvent& one : writer.on_event(0, event, facts)) events.push_back(one);
    }
    for (const ServerEvent& one : writer.end()) events.push_back(one);
    for (const ServerEvent& one : events) {
      if (one.data != "[DONE]") text += form.streamed(Json::parse(one.data));
    }
    const Json whole = Json::parse(writer.whole());
    EXPECT_EQ(text, "Gr\u00fc\u00dfe");
    EXPECT_EQ(form.whole(whole), text);
    EXPECT_EQ(whole["headwater"]["cached_tokens"], 4);
    EXPECT_EQ(whole["timings"]["prompt_n"], 6);
    if (form.parse == parse_chat || form.parse == parse_text) {
      EXPECT_EQ(whole["usage"]["total_tokens"], 13);
      EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
      EXPECT_EQ(Json::parse(events[events.size() - 2].data)["usage"], whole["usage"]);
    }
    if (form.parse == parse_responses) {
      EXPECT_EQ(whole["status"], "incomplete");
    }
  }
}

TEST(AnswerWriter, OffsetsOfTokensCountCharactersAndPartsOfThemAreOneKey) {
  std::vector<std::int32_t> ids = model().tokenizer.encode("Hi 🙂!", false, false);
  AnswerWriter writer(parse_text(with(kText, R"({"logprobs": 2})"), model()), model(), "id", 5);
  Completion::Event event;
  for (const std::int32_t id : ids) event.tokens.push_back({{id, -0.5f}, {{id, -0.5f}}});
  // Two bytes that begin characters: as texts both are U+FFFD.
  event.tokens.back().best = {{ids[ids.size() - 2], -0.5f}, {ids[ids.size() - 3], -1.5f}};
  const std::string data = writer.on_event(0, event, {}).at(0).data;
  EXPECT_EQ(Json::parse(data)["choices"][0]["logprobs"]["text_offset"].back(), 4);
  EXPECT_THAT(data, HasSubstr("{\"\uFFFD\":-0.5}],\"text_offset\""));
}

TEST(AnswerWriter, AResponseIsCreatedBeforeItsPromptIsRead) {
  AnswerWriter writer(parse_responses(kInput, model()), model(), "id", 5);
  Completion::Event progress;
  progress.prompt_done = 8;
  EXPECT_EQ(writer.on_event(0, progress, {}).at(0).event, "response.created");
  EXPECT_TRUE(writer.on_event(0, progress, {}).empty());
}

TEST(ToolReader, FindsCallsHoweverTheyCome) {
  struct Case {
    std::vector<std::string> pushes;
    std::string text;
    std::vector<std::string> calls;
  };
  const std::string call = R"({"name": "f", "arguments": {"b": 1, "a": [2]}})";
  const std::vector<Case> cases = {
      {{"Hello ", "world"}, "Hello world", {}},
      {{"<tool_call>\n", call, "\n</tool_call>"}, "", {R"({"b":1,"a":[2]})"}},
      {{"Let me see.\n<to", "ol_call>" + call + "</tool_", "call>"}, "Let me see.\n", {R"({"b":1,"a":[2]})"}},
      {{"<tool_call>" + call + "</tool_call>\n<tool_call>" + call},
       "",
       {R"({"b":1,"a":[2]})", R"({"b":1,"a":[2]})"}},
      {{R"({"name": "f", )", R"("parameters": {}})"}, "", {"{}"}},
      {{"[" + call + "," + call + "]"}, "", {R"({"b":1,"a":[2]})", R"({"b":1,"a":[2]})"}},
      {{R"({"name": "g", "arguments": {}})"}, R"({"name": "g", "arguments": {}})", {}},
      {{R"({"name": "f", "arguments": 3})"}, R"({"name": "f", "arguments": 3})", {}},
      {{"{1}"}, "{1}", {}},
      {{"a <tool", "s> b"}, "a <tools> b", {}},
      {{"x<tool_call>no</tool_call>y"}, "x<tool_call>no</tool_call>y", {}},
      {{}, "", {}},
  };
  for (const Case& one : cases) {
    ToolReader reader({"f"});
    std::string text;
    for (const std::string& push : one.pushes) text += reader.push(push);
    text += reader.finish();
    EXPECT_EQ(text, one.text);
    std::vector<std::string> calls;
    for (const ToolCall& found : reader.calls()) calls.push_back(found.arguments);
    EXPECT_EQ(calls, one.calls) << one.text;
  }
}

TEST(AnswerWriter, CallsOfToolsAreNoText) {
  ApiRequest asked = parse_chat(with(kChat, R"({"stream": true})"), model());
  asked.tools = {"f"};
  AnswerWriter writer(asked, model(), "id", 5);
  std::string text;
  nlohmann::json last;
  for (const auto& [part, end] : {std::pair{"Yes. <tool_", Completion::End::none},
                                  {"call>{\"name\": \"f\", \"arguments\": {}}", Completion::End::token}}) {
    Completion::Event event;
    event.text = part;
    event.end = end;
    for (const ServerEvent& one : writer.on_event(0, event, {})) {
      last = nlohmann::json::parse(one.data)["choices"][0];
      text += last["delta"].value("content", "");
    }
  }
  EXPECT_EQ(text, "Yes. ");
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["function"]["arguments"], "{}");
  const nlohmann::json whole = nlohmann::json::parse(writer.whole())["choices"][0];
  EXPECT_EQ(whole["message"]["content"], "Yes. ");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
}

}  // namespace
}  // namespace headwater::cli
