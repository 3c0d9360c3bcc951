#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands/serve/api_answer.hpp"
#include "cli/commands/serve/api_request.hpp"
#include "cli/commands/serve/flags.hpp"
#include "cli/commands/serve/http_server.hpp"
#include "runtime/serve/scheduler.hpp"

namespace headwater::cli {

/// Whether a host is this machine alone: localhost, 127.*, ::1.
[[nodiscard]] bool is_loopback(std::string_view host);

/// The paths of the server: what a request asks for, and its answer. Used by many threads.
class Service {
 public:
  /// All of them outlive it.
  Service(const ServeFlags& flags, ServedModel model, runtime::Scheduler& scheduler,
          runtime::PrefixCache& cache);

  [[nodiscard]] HttpAnswer answer(HttpRequest& request);
  /// In OpenAI's form.
  [[nodiscard]] static HttpAnswer refusal(int status, const std::string& what);
  /// From now on new requests are refused.
  void end() { ends_ = true; }

 private:
  void check_access(const HttpRequest& request) const;
  [[nodiscard]] HttpAnswer get(const HttpRequest& request);
  [[nodiscard]] HttpAnswer post(HttpRequest& request);
  [[nodiscard]] HttpAnswer complete(HttpRequest& request, const ApiRequest& asked);
  [[nodiscard]] HttpAnswer slots() const;
  [[nodiscard]] HttpAnswer slot_action(const HttpRequest& request);
  [[nodiscard]] std::string metrics() const;

  const ServeFlags& flags_;
  ServedModel model_;
  runtime::Scheduler& scheduler_;
  runtime::PrefixCache& cache_;
  std::atomic<bool> ends_ = false;
};

}  // namespace headwater::cli
