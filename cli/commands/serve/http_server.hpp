#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

struct MHD_Connection;

namespace headwater::cli {

/// A request whose body is there. Valid inside the handler only, client_there() also while the answer's stream runs.
class HttpRequest {
 public:
  explicit HttpRequest(MHD_Connection* connection) : connection_(connection) {}

  std::string method;  ///< "GET"
  std::string path;    ///< without the query, not decoded any further
  std::string body;
  /// Empty where there is none.
  [[nodiscard]] std::string header(const char* name) const;
  [[nodiscard]] std::string query(const char* name) const;
  /// False once the client has closed its side.
  [[nodiscard]] bool client_there() const;

 private:
  MHD_Connection* connection_;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// In place of a body: what comes next, empty where nothing has come for a moment, none at the end. Asked on the
  /// connection's own thread, and no longer once the client has gone.
  std::function<std::optional<std::string>()> stream = {};
};

struct HttpOptions {
  std::string host;            ///< a name or an address
  int port = 0;                ///< 0: any
  unsigned connections = 0;    ///< most at a time
  std::size_t body_bytes = 0;  ///< most of a request
  unsigned timeout = 0;  ///< seconds of a client that neither sends nor reads, and of the whole of a body
};

/// HTTP/1.1 by libmicrohttpd, a thread for each connection. Bodies, headers, connections and times are limited.
class HttpServer {
 public:
  /// Called from several threads. What it throws becomes status 500.
  using Handler = std::function<HttpAnswer(HttpRequest&)>;

  /// Listens, and answers from now on. `refusal` makes the answer to what the handler never sees: too large, too slow. Failure
  /// where it cannot listen.
  HttpServer(HttpOptions options, Handler handler,
             std::function<HttpAnswer(int status, std::string what)> refusal);
  /// Waits for the streams that run.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headwater::cli
