#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "cli/commands/commands.hpp"
#include "cli/commands/serve/flags.hpp"
#include "cli/commands/serve/http_server.hpp"
#include "cli/commands/serve/service.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/model_memory.hpp"
#include "cli/support/ranks.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "runtime/model/threads.hpp"
#include "runtime/serve/prefix_cache.hpp"
#include "runtime/serve/scheduler.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Signals that end the server, for one thread to wait for; threads that are started later inherit that.
sigset_t block_ends() {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  (void)::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  return ends;
}

/// Of the bytes that the cache's rows depend on: the model file by its head, size and time, and what computes with it.
std::string fingerprint(const LoadedModel& model, const Engine& engine) {
  struct stat status {};
  (void)::stat(model.flags().model.c_str(), &status);
  return fmt::format("head {:016x}, {} bytes of {}.{:09}, products {}, engine {}", model.file().head_hash(),
                     model.file().file_bytes(), status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                     static_cast<int>(model.flags().precision), engine.name());
}

runtime::PrefixCache::Options cache_options(const ServeFlags& flags, const LoadedModel& model,
                                            const runtime::Transformer& transformer) {
  const EffectiveOptions& options = transformer.options();
  const Shape& shape = transformer.session().shape();
  runtime::PrefixCache::Options cache;
  cache.page_bytes = shape.n_layer * shape.n_head_kv * options.page *
                     stored_bytes(shape.d_head + shape.d_value, shape.kv_type, options.kv_bits);
  const auto free =
      static_cast<std::int64_t>(memory_limit() - std::min(memory_limit(), model.weight_bytes()));
  cache.ram_bytes = flags.cache_ram ? *flags.cache_ram * kMiB : free / 2;
  cache.directory = flags.cache_dir;
  cache.disk_bytes = flags.cache_disk * kMiB;
  cache.fingerprint = fingerprint(model, transformer.engine());
  return cache;
}

/// Waits for signals beside the thread that computes: the first asks for an end, a second one, or the end of the time that
/// requests have, ends them.
class Ending {
 public:
  Ending(const sigset_t& signals, unsigned grace, Service& service, runtime::Scheduler& scheduler)
      : thread_([this, signals, grace, &service, &scheduler] {
          const timespec tick{0, 100'000'000};
          while (::sigtimedwait(&signals, nullptr, &tick) < 0 && !over_) {
          }
          if (over_) return;
          service.end();
          scheduler.stop(false);
          // In short waits, so that requests that are done end it.
          for (unsigned tenth = 0; tenth < grace * 10 && !over_; ++tenth) {
            if (::sigtimedwait(&signals, nullptr, &tick) > 0) break;
          }
          scheduler.stop(true);
        }) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace

ExitCode serve_command(const Arguments& arguments) {
  const sigset_t signals = block_ends();
  join_ranks("headwater serve", arguments);
  const std::optional<ServeFlags> parsed = parse_serve_flags(arguments);
  if (!parsed) return ExitCode::done;
  const ServeFlags& flags = *parsed;
  LoadedModel model(flags.model);
  if (serves()) model.serve();
  std::optional<runtime::ChatTemplate> chat;
  std::vector<std::string> warnings = model.warnings();
  try {
    chat = model.chat_template("--chat-template", flags.chat_template);
  } catch (const Failure& failure) {
    if (flags.chat_template) throw;
    warnings.push_back(fmt::format("no chats: {}", failure.what()));
  }
  const std::unique_ptr<runtime::Transformer> transformer =
      model.open(model.context(), flags.dense, flags.slots);
  const EffectiveOptions& options = transformer->options();
  warnings.insert(warnings.end(), options.warnings.begin(), options.warnings.end());
  if (!is_loopback(flags.host) && flags.api_key.empty()) {
    warnings.push_back(
        fmt::format("--host {}: other machines can connect, and no key is asked for; see --api-key-file",
                    in_quotes(flags.host)));
  }
  if (ranks() != nullptr) warnings.emplace_back("no cache of prefixes: the model is in several processes");
  runtime::PrefixCache cache(*transformer, cache_options(flags, model, *transformer));
  runtime::Scheduler::Options scheduling;
  scheduling.dense_tail = flags.dense_tail.value_or(kDenseTail);
  scheduling.most_queued = flags.queue;
  scheduling.exact = flags.cache_exact;
  runtime::Scheduler scheduler(*transformer, model.tokenizer(), cache, scheduling);

  const std::string name = flags.alias.value_or(std::filesystem::path(flags.model.model).filename().string());
  const ServedModel served{
      name,        model.tokenizer(), chat ? &*chat : nullptr, model.context(), flags.tokens,
      flags.slots, model.texts()};
  Service service(flags, served, scheduler, cache);
  {
    const HttpServer server(
        {flags.host, flags.port, flags.connections, static_cast<std::size_t>(flags.body * kMiB),
         flags.timeout},
        [&](HttpRequest& request) { return service.answer(request); }, Service::refusal);
    warn(warnings);
    warn(cache.take_warnings());
    print_out(fmt::format("{} at http://{}:{}/, {} at a time, {} each\n", in_quotes(name), flags.host,
                          server.port(), count_text(flags.slots, "request"),
                          count_text(model.context(), "token")));
    const Ending ending(signals, flags.grace, service, scheduler);
    scheduler.run();
  }
  cache.save_all();
  warn(cache.take_warnings());
  return ExitCode::done;
}

}  // namespace headwater::cli
