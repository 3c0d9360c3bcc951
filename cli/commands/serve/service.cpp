#include "cli/commands/serve/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <random>
#include <string_view>
#include <utility>

#include "cli/commands/serve/assets.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "headwater/version.hpp"

namespace headwater::cli {
namespace {

using Json = nlohmann::ordered_json;
using runtime::Completion;

constexpr std::chrono::milliseconds kTick(50);  // how soon a client that goes away is noticed
constexpr std::chrono::seconds kAwake(5);       // between bytes that keep a proxy awake

HttpAnswer json_answer(const Json& json) { return {.body = text_of(json)}; }

HttpAnswer error_answer(const ApiError& error) {
  HttpAnswer answer{.status = error.status(), .body = text_of(error.body())};
  if (error.status() == 429 || error.status() == 503) answer.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

/// Compares all bytes whatever they are: the time does not say how many are right.
bool same_key(std::string_view given, std::string_view key) {
  unsigned different = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < key.size(); ++i) {
    different |=
        static_cast<unsigned char>(key[i]) ^ static_cast<unsigned char>(i < given.size() ? given[i] : 0);
  }
  return different == 0;
}

/// "localhost" of "localhost:8080".
std::string_view without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const bool port = colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos;
  return port ? host.substr(0, colon) : host;
}

std::string new_id(const char* begin) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", begin, random(), random(), random());
}

/// The completions of one request on their way to its client.
class Delivery {
 public:
  Delivery(const ApiRequest& asked, const ServedModel& model, const char* id_begin, bool quiet)
      : writer_(asked, model, new_id(id_begin), std::time(nullptr)), quiet_(quiet) {}
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;
  /// Where the client has gone, the work ends.
  ~Delivery() {
    for (const auto& job : jobs_) job->cancel();
    if (!quiet_ && !jobs_.empty()) print_error(line());
  }

  void add(std::shared_ptr<Completion> job) {
    jobs_.push_back(std::move(job));
    ended_.push_back(false);
  }
  [[nodiscard]] bool done() const {
    return std::all_of(ended_.begin(), ended_.end(), [](bool end) { return end; });
  }

  /// Waits a moment for what the scheduler says: server-sent events, empty where there are none.
  std::string poll() {
    std::string frames;
    const auto wait = std::max(kTick / static_cast<int>(jobs_.size()), std::chrono::milliseconds(1));
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (ended_[i]) continue;
      std::optional<Completion::Event> event = jobs_[i]->next(wait);
      for (; event; event = ended_[i] ? std::nullopt : jobs_[i]->next(std::chrono::milliseconds(0))) {
        if (event->end == Completion::End::error && error_.empty()) error_ = event->message;
        ended_[i] = event->end != Completion::End::none;
        for (const ServerEvent& one : writer_.on_event(static_cast<int>(i), *event, jobs_[i]->facts())) {
          frames += frame(one);
        }
      }
    }
    return frames;
  }
  /// What follows once all are done.
  [[nodiscard]] std::string end() {
    std::string frames;
    for (const ServerEvent& one : writer_.end()) frames += frame(one);
    return frames;
  }
  [[nodiscard]] std::string whole() { return writer_.whole(); }
  [[nodiscard]] const std::string& error() const { return error_; }

  /// Of a stream (HttpAnswer::stream).
  std::optional<std::string> next() {
    if (over_) return std::nullopt;
    std::string frames = poll();
    if (done()) {
      over_ = true;
      return frames + end();
    }
    const auto now = std::chrono::steady_clock::now();
    if (frames.empty() && now - written_ > kAwake) frames = ": waiting\n\n";
    if (!frames.empty()) written_ = now;
    return frames;
  }

 private:
  static std::string frame(const ServerEvent& event) {
    return (event.event.empty() ? "" : "event: " + event.event + "\n") + "data: " + event.data + "\n\n";
  }
  [[nodiscard]] std::string line() const {
    std::int64_t prompt = 0;
    std::int64_t cached = 0;
    std::int64_t generated = 0;
    double seconds = 0;
    for (const auto& job : jobs_) {
      const runtime::CompletionFacts facts = job->facts();
      prompt += facts.prompt_tokens;
      cached += facts.cached_tokens;
      generated += facts.generated_tokens;
      seconds = std::max(seconds, facts.queued_seconds + facts.prefill_seconds + facts.decode_seconds);
    }
    const std::string end = !error_.empty() ? ", failed: " + one_line(error_, 200)
                            : done()        ? ""
                                            : ", client gone";
    return fmt::format("request: {} of a prompt, {} from the cache, {} generated in {:.3f} s{}\n",
                       count_text(prompt, "token"), cached, generated, seconds, end);
  }

  AnswerWriter writer_;
  bool quiet_;
  bool over_ = false;
  std::vector<std::shared_ptr<Completion>> jobs_;
  std::vector<bool> ended_;
  std::string error_;
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" || host == "::1" || host.starts_with("127.");
}

Service::Service(const ServeFlags& flags, ServedModel model, runtime::Scheduler& scheduler,
                 runtime::PrefixCache& cache)
    : flags_(flags), model_(std::move(model)), scheduler_(scheduler), cache_(cache) {}

HttpAnswer Service::refusal(int status, const std::string& what) {
  return error_answer(ApiError(status, what, status < 500 ? "invalid_request_error" : "server_error"));
}

HttpAnswer Service::answer(HttpRequest& request) {
  try {
    check_access(request);
    if (request.method == "GET" || request.method == "HEAD") return get(request);
    if (request.method == "POST") return post(request);
    throw ApiError(405, fmt::format("method {} is not known; allowed: GET, POST", in_quotes(request.method)),
                   "invalid_request_error");
  } catch (const ApiError& error) {
    return error_answer(error);
  } catch (const Error& error) {
    return refusal(error.code() == ErrorCode::invalid_argument ? 400 : 500, error.what());
  }
}

/// A page of another site that a browser of this machine shows must not reach a server of the loopback.
void Service::check_access(const HttpRequest& request) const {
  const std::string host = request.header("Host");
  if (is_loopback(flags_.host) && !host.empty() && !is_loopback(without_port(host))) {
    throw ApiError(403,
                   fmt::format("host {} is not this machine; allowed: localhost, or --host", in_quotes(host)),
                   "invalid_request_error");
  }
  const std::string origin = request.header("Origin");
  if (!origin.empty() && origin != "http://" + host && origin != "https://" + host) {
    throw ApiError(
        403, fmt::format("origin {} is another site; allowed: the server's own page", in_quotes(origin)),
        "invalid_request_error");
  }
  constexpr std::array kOpen = {"/", "/page.css", "/page.js", "/health", "/v1/health"};
  const bool open = std::find(kOpen.begin(), kOpen.end(), request.path) != kOpen.end();
  if (flags_.api_key.empty() || open) return;
  std::string given = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  given = given.starts_with(kBearer) ? given.substr(kBearer.size()) : request.header("X-Api-Key");
  if (!same_key(given, flags_.api_key)) {
    throw ApiError(401, "the API key is missing or wrong; allowed: Authorization: Bearer KEY",
                   "authentication_error");
  }
}

HttpAnswer Service::get(const HttpRequest& request) {
  const auto page = [](const char* type, std::string_view text) {
    return HttpAnswer{
        .type = type,
        .body = std::string(text),
        .headers = {
            {"Content-Security-Policy",
             "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
             "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
            {"Referrer-Policy", "no-referrer"},
            {"Cache-Control", "no-cache"}}};
  };
  const std::string& path = request.path;
  if (path == "/") return page("text/html; charset=utf-8", assets::serve_page());
  if (path == "/page.css") return page("text/css; charset=utf-8", assets::serve_style());
  if (path == "/page.js") return page("text/javascript; charset=utf-8", assets::serve_script());
  if (path == "/health" || path == "/v1/health") {
    if (ends_) throw ApiError(503, "the server ends", "server_error");
    return json_answer({{"status", "ok"}});
  }
  const Json model = {{"id", model_.name},
                      {"object", "model"},
                      {"created", 0},
                      {"owned_by", "headwater"},
                      {"meta", {{"n_ctx", model_.context}, {"n_vocab", model_.tokenizer.size()}}}};
  if (path == "/v1/models" || path == "/models") {
    return json_answer({{"object", "list"}, {"data", Json::array({model})}});
  }
  if (path == "/v1/models/" + model_.name) return json_answer(model);
  if (path == "/props") {
    return json_answer({{"model_alias", model_.name},
                        {"total_slots", flags_.slots},
                        {"default_generation_settings", {{"n_ctx", model_.context}}},
                        {"build_info", fmt::format("headwater {}", kVersion)}});
  }
  if (path == "/metrics") return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics()};
  if (path == "/slots") return slots();
  throw ApiError(404, fmt::format("{} is not known; see headwater serve --help", in_quotes(path)),
                 "not_found_error");
}

HttpAnswer Service::post(HttpRequest& request) {
  const std::string& path = request.path;
  if (path.starts_with("/slots/")) return slot_action(request);
  const auto body = [&] { return parse_body(request.body); };
  if (path == "/tokenize") return json_answer(tokenize(body(), model_));
  if (path == "/detokenize") return json_answer(detokenize(body(), model_));
  if (path == "/apply-template") return json_answer(apply_template(body(), model_));
  if (path == "/v1/chat/completions" || path == "/chat/completions")
    return complete(request, parse_chat(body(), model_));
  if (path == "/v1/completions" || path == "/completions")
    return complete(request, parse_text(body(), model_));
  if (path == "/completion") return complete(request, parse_native(body(), model_));
  if (path == "/v1/responses") return complete(request, parse_responses(body(), model_));
  throw ApiError(404, fmt::format("{} is not known; see headwater serve --help", in_quotes(path)),
                 "not_found_error");
}

HttpAnswer Service::complete(HttpRequest& request, const ApiRequest& asked) {
  if (ends_) throw ApiError(503, "the server ends", "server_error");
  const char* const id = asked.form == ApiRequest::Form::chat        ? "chatcmpl-"
                         : asked.form == ApiRequest::Form::responses ? "resp_"
                                                                     : "cmpl-";
  auto delivery = std::make_shared<Delivery>(asked, model_, id, flags_.quiet);
  for (const runtime::CompletionRequest& prompt : asked.prompts) {
    for (int choice = 0; choice < asked.n; ++choice) {
      runtime::CompletionRequest one = prompt;
      one.sampling.seed += static_cast<std::uint64_t>(choice);
      std::shared_ptr<Completion> job = scheduler_.submit(std::move(one));
      if (!job) {
        throw ApiError(429,
                       fmt::format("{} requests wait already; allowed: --queue {}, try again", flags_.queue,
                                   flags_.queue),
                       "rate_limit_error");
      }
      delivery->add(std::move(job));
    }
  }
  if (asked.stream) {
    return {.type = "text/event-stream",
            .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
            .stream = [delivery] { return delivery->next(); }};
  }
  while (!delivery->done()) {
    (void)delivery->poll();
    if (!request.client_there()) return refusal(499, "the client has gone");
  }
  if (!delivery->error().empty()) return refusal(ends_ ? 503 : 500, delivery->error());
  return {.body = delivery->whole()};
}

HttpAnswer Service::slots() const {
  Json list = Json::array();
  const runtime::Scheduler::Facts facts = scheduler_.facts();
  for (std::size_t i = 0; i < facts.slots.size(); ++i) {
    const runtime::Scheduler::SlotFacts& slot = facts.slots[i];
    list.push_back({{"id", i},
                    {"id_task", slot.request},
                    {"is_processing", slot.request != 0},
                    {"state", slot.request == 0 ? "idle"
                              : slot.reading    ? "prompt"
                                                : "answer"},
                    {"n_ctx", model_.context},
                    {"prompt_tokens", slot.prompt_tokens},
                    {"cached_tokens", slot.cached_tokens},
                    {"stored_tokens", slot.stored_tokens},
                    {"generated_tokens", slot.generated_tokens}});
  }
  return json_answer(list);
}

std::string Service::metrics() const {
  const runtime::Scheduler::Facts facts = scheduler_.facts();
  const auto busy = std::count_if(facts.slots.begin(), facts.slots.end(),
                                  [](const auto& slot) { return slot.request != 0; });
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, auto value) {
    text += fmt::format("# HELP headwater_{0} {1}\n# TYPE headwater_{0} {2}\nheadwater_{0} {3}\n", name, help,
                        type, value);
  };
  add("requests_total", "counter", "Requests that ended.", facts.requests);
  add("requests_cancelled_total", "counter", "Of these, clients that went away.", facts.cancelled);
  add("requests_failed_total", "counter", "Of these, errors.", facts.failed);
  add("requests_refused_total", "counter", "Requests that found the queue full.", facts.refused);
  add("prompt_tokens_total", "counter", "Tokens of prompts.", facts.prompt_tokens);
  add("cached_tokens_total", "counter", "Of these, from the cache.", facts.cached_tokens);
  add("generated_tokens_total", "counter", "Tokens of answers.", facts.generated_tokens);
  add("prefill_steps_total", "counter", "Steps that read a chunk of a prompt.", facts.prefill_steps);
  add("decode_steps_total", "counter", "Steps that gave each answer a token.", facts.decode_steps);
  add("prefill_seconds_total", "counter", "Time of the former.", facts.prefill_seconds);
  add("decode_seconds_total", "counter", "Time of the latter.", facts.decode_seconds);
  add("requests_queued", "gauge", "Requests that wait for a slot.", facts.queued);
  add("slots", "gauge", "Slots.", facts.slots.size());
  add("slots_busy", "gauge", "Slots that work.", busy);
  add("cache_entries", "gauge", "Prefixes in memory or in files.", facts.cache.entries);
  add("cache_rows_bytes", "gauge", "Stored rows in memory, running requests among them.",
      facts.cache.rows_bytes);
  add("cache_files_bytes", "gauge", "Files of prefixes.", facts.cache.files_bytes);
  add("cache_damaged_total", "counter", "Files that could not be read.", facts.cache.damaged);
  return text;
}

/// POST /slots/ID?action=save, restore or erase. Files are the cache's own: a name says which entry is meant.
HttpAnswer Service::slot_action(const HttpRequest& request) {
  const std::string number = request.path.substr(std::string_view("/slots/").size());
  const bool digits = !number.empty() && number.size() < 4 &&
                      std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::size_t slot = digits ? std::stoul(number) : static_cast<std::size_t>(flags_.slots);
  if (slot >= static_cast<std::size_t>(flags_.slots)) {
    throw ApiError(404,
                   fmt::format("slot {} is not there; allowed: 0 .. {}", in_quotes(number), flags_.slots - 1),
                   "not_found_error");
  }
  const std::string action = request.query("action");
  if (action != "save" && action != "restore" && action != "erase") {
    throw ApiError(400, fmt::format("action is {}; allowed: save, restore, erase", in_quotes(action)),
                   "invalid_request_error");
  }
  std::string name;
  if (action != "erase") {
    if (flags_.cache_dir.empty()) {
      throw ApiError(501, "slots are saved in the cache's directory; allowed: a server with --cache-dir",
                     "invalid_request_error");
    }
    const Json body = parse_body(request.body);
    const auto file = body.find("filename");
    if (file != body.end() && file->is_string()) name = file->get<std::string>();
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
             c == '_' || c == '-';
    });
    if (name.empty() || name.size() > 64 || !plain) {
      throw ApiError(400, "filename is no name of 1 .. 64 letters, digits, '.', '_', '-'",
                     "invalid_request_error", "filename");
    }
  }
  std::int64_t tokens = -1;
  const bool there = scheduler_.between_steps([&] {
    if (action == "restore") {
      tokens = cache_.restore(name);
      return;
    }
    const std::span<const std::int32_t> ids = scheduler_.last_of(slot);
    if (action == "save") {
      tokens = cache_.save_as(ids, name);
    } else {
      tokens = std::ssize(ids);
      cache_.erase(ids);
    }
  });
  if (!there) throw ApiError(503, "the server ends", "server_error");
  if (tokens < 0) {
    throw ApiError(404,
                   action == "save" ? fmt::format("slot {} has no conversation that is kept", slot)
                                    : fmt::format("no saved slot has the name {}", in_quotes(name)),
                   "not_found_error");
  }
  Json answer = {{"id_slot", slot}};
  if (!name.empty()) answer["filename"] = name;
  answer[action == "save" ? "n_saved" : action == "restore" ? "n_restored" : "n_erased"] = tokens;
  return json_answer(answer);
}

}  // namespace headwater::cli
