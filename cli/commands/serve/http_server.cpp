#include "cli/commands/serve/http_server.hpp"

#include <fmt/format.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlock = std::size_t{16} << 10;  // of a stream
/// Of a connection: its request line and headers, and a block of its stream.
constexpr std::size_t kConnectionBytes = std::size_t{64} << 10;
constexpr int kBacklog = 128;
/// Least seconds of silence in a stream, which says something at least every five.
constexpr unsigned kStreamTimeout = 15;

std::string value_of(MHD_Connection* connection, MHD_ValueKind kind, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, kind, name);
  return value == nullptr ? std::string() : std::string(value);
}

/// A request from its first header to the end of its answer.
struct Exchange {
  explicit Exchange(MHD_Connection* connection) : request(connection) {}
  HttpRequest request;
  Clock::time_point begun = Clock::now();
  int refused = 0;  // the status of what the handler never sees
  std::function<std::optional<std::string>()> stream;
  std::string pending;  // of the stream
};

/// Of MHD's content reader: waits until there is something.
ssize_t read_stream(void* closure, std::uint64_t /*position*/, char* buffer, std::size_t most) {
  auto& exchange = *static_cast<Exchange*>(closure);
  try {
    while (exchange.pending.empty()) {
      if (!exchange.request.client_there()) return MHD_CONTENT_READER_END_WITH_ERROR;
      std::optional<std::string> more = exchange.stream();
      if (!more) return MHD_CONTENT_READER_END_OF_STREAM;
      exchange.pending = std::move(*more);
    }
  } catch (const std::exception&) {
    return MHD_CONTENT_READER_END_WITH_ERROR;
  }
  const std::size_t count = std::min(most, exchange.pending.size());
  std::copy_n(exchange.pending.data(), count, buffer);
  exchange.pending.erase(0, count);
  return static_cast<ssize_t>(count);
}

MHD_Result queue(MHD_Connection* connection, Exchange& exchange, HttpAnswer answer, unsigned timeout) {
  MHD_Response* response = nullptr;
  if (answer.stream) {
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, std::max(timeout, kStreamTimeout));
    exchange.stream = std::move(answer.stream);
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kBlock, read_stream, &exchange, nullptr);
  } else {
    response = MHD_create_response_from_buffer(answer.body.size(), answer.body.data(), MHD_RESPMEM_MUST_COPY);
  }
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type.c_str());
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : answer.headers) {
    MHD_add_response_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result result = MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
  MHD_destroy_response(response);
  return result;
}

/// Every connection is an open file: lets this process open as many. Failure where the system does not.
void allow_files(unsigned connections) {
  constexpr rlim_t kOwn = 128;  // the model, the cache, libraries
  const rlim_t needed = connections + kOwn;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur == needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  const rlim_t fit = limit.rlim_max > kOwn ? limit.rlim_max - kOwn : 0;
  throw Failure(fmt::format(
      "--connections: {} are not allowed where a process may open {} files; use at most {}, or raise "
      "ulimit -n",
      connections, limit.rlim_max, fit));
}

/// A socket that listens. Failure, with the reason.
int listen_at(const HttpOptions& options) {
  const auto refuse = [&](const char* why) {
    throw Failure(
        fmt::format("--host {} --port {}: cannot listen: {}; allowed: an address of this machine and a port "
                    "that is free",
                    in_quotes(options.host), options.port, why));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (error != 0) refuse(::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  const int number = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (number < 0) refuse(std::strerror(errno));
  constexpr int kOn = 1;
  (void)::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
  if (::bind(number, found->ai_addr, found->ai_addrlen) != 0 || ::listen(number, kBacklog) != 0) {
    const int reason = errno;
    ::close(number);
    refuse(std::strerror(reason));
  }
  return number;
}

}  // namespace

std::string HttpRequest::header(const char* name) const {
  return value_of(connection_, MHD_HEADER_KIND, name);
}

std::string HttpRequest::query(const char* name) const {
  return value_of(connection_, MHD_GET_ARGUMENT_KIND, name);
}

bool HttpRequest::client_there() const {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection_, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return false;
  pollfd one{info->connect_fd, POLLRDHUP, 0};
  return ::poll(&one, 1, 0) == 0 || (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0;
}

struct HttpServer::State {
  HttpOptions options;
  Handler handler;
  std::function<HttpAnswer(int, std::string)> refusal;
  MHD_Daemon* daemon = nullptr;

  static MHD_Result access(void* closure, MHD_Connection* connection, const char* url, const char* method,
                           const char* /*version*/, const char* data, std::size_t* size, void** exchange) {
    try {
      return static_cast<State*>(closure)->receive(connection, url, method, data, size, exchange);
    } catch (const std::exception&) {
      return MHD_NO;  // out of memory: the connection is closed
    }
  }
  static void completed(void* /*closure*/, MHD_Connection* /*connection*/, void** exchange,
                        MHD_RequestTerminationCode /*code*/) {
    delete static_cast<Exchange*>(*exchange);
    *exchange = nullptr;
  }

  MHD_Result receive(MHD_Connection* connection, const char* url, const char* method, const char* data,
                     std::size_t* size, void** closure) {
    if (*closure == nullptr) {
      auto* const exchange = new Exchange(connection);
      *closure = exchange;
      exchange->request.method = method;
      exchange->request.path = url;
      // Said before the body comes; MHD has checked the number itself.
      std::uint64_t length = 0;
      const std::string text = exchange->request.header(MHD_HTTP_HEADER_CONTENT_LENGTH);
      std::from_chars(text.data(), text.data() + text.size(), length);
      if (length <= options.body_bytes) return MHD_YES;
      return queue(connection, *exchange, refuse(MHD_HTTP_CONTENT_TOO_LARGE), options.timeout);
    }
    Exchange& exchange = *static_cast<Exchange*>(*closure);
    if (*size > 0) {
      if (exchange.request.body.size() + *size > options.body_bytes)
        exchange.refused = MHD_HTTP_CONTENT_TOO_LARGE;
      if (Clock::now() - exchange.begun > std::chrono::seconds(options.timeout)) {
        exchange.refused = MHD_HTTP_REQUEST_TIMEOUT;
      }
      // An answer cannot be queued here: such a client is left.
      if (exchange.refused != 0) return MHD_NO;
      exchange.request.body.append(data, *size);
      *size = 0;
      return MHD_YES;
    }
    HttpAnswer answer;
    try {
      answer = handler(exchange.request);
    } catch (const std::exception& error) {
      answer = refusal(MHD_HTTP_INTERNAL_SERVER_ERROR, error.what());
    }
    return queue(connection, exchange, std::move(answer), options.timeout);
  }

  [[nodiscard]] HttpAnswer refuse(int status) const {
    return refusal(status, fmt::format("the body is too large; allowed: {} bytes", options.body_bytes));
  }
};

HttpServer::HttpServer(HttpOptions options, Handler handler,
                       std::function<HttpAnswer(int status, std::string what)> refusal)
    : state_(std::make_unique<State>()) {
  allow_files(options.connections);
  const int listening = listen_at(options);
  state_->options = std::move(options);
  state_->handler = std::move(handler);
  state_->refusal = std::move(refusal);
  const unsigned flags =
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC;
  state_->daemon = MHD_start_daemon(
      flags, 0, nullptr, nullptr, &State::access, state_.get(), MHD_OPTION_LISTEN_SOCKET, listening,
      MHD_OPTION_CONNECTION_LIMIT, state_->options.connections, MHD_OPTION_CONNECTION_TIMEOUT,
      state_->options.timeout, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,
      MHD_OPTION_NOTIFY_COMPLETED, &State::completed, nullptr, MHD_OPTION_END);
  if (state_->daemon != nullptr) return;
  ::close(listening);
  throw Failure(fmt::format("the HTTP server cannot start: {}", std::strerror(errno)));
}

HttpServer::~HttpServer() { MHD_stop_daemon(state_->daemon); }

int HttpServer::port() const {
  const MHD_DaemonInfo* const info = MHD_get_daemon_info(state_->daemon, MHD_DAEMON_INFO_LISTEN_FD);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  (void)::getsockname(info->listen_fd, reinterpret_cast<sockaddr*>(&address), &size);
  char port[NI_MAXSERV] = "";
  (void)::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, nullptr, 0, port, sizeof port,
                      NI_NUMERICSERV);
  return std::atoi(port);
}

}  // namespace headwater::cli
