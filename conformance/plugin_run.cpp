#include "conformance/plugin_run.hpp"

#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "conformance/claims.hpp"
#include "conformance/isolation.hpp"
#include "conformance/plugin_engine.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

using nlohmann::json;

std::string text_of(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Results and identities are handed from process to process as JSON; NaN travels as null.
std::string encode(const Result& result) {
  json errors = json::array();
  for (const StageError& error : result.errors) errors.push_back({error.stage, error.dtype, error.ratio});
  return text_of({{"status", static_cast<int>(result.status)},
                  {"message", result.message},
                  {"seconds", result.seconds},
                  {"errors", errors}});
}

// False where the text is no result: the plug-in may have written to any memory of the process that loaded it.
bool decode(const std::string& text, Result& result) try {
  const json document = json::parse(text);
  result.status = static_cast<Status>(document.at("status").get<int>());
  if (result.status < Status::pass || result.status > Status::mistrusted) return false;
  result.message = document.at("message").get<std::string>();
  result.seconds = document.at("seconds").get<double>();
  for (const json& error : document.at("errors")) {
    const json& ratio = error.at(2);
    result.errors.push_back(
        {error.at(0).get<std::string>(), error.at(1).get<std::string>(),
         ratio.is_number() ? ratio.get<double>() : std::numeric_limits<double>::quiet_NaN()});
  }
  return true;
} catch (const json::exception&) {
  return false;
}

std::string encode(const PluginIdentity& identity) {
  json claims = json::object();
  for (const ClaimInfo& claim : kClaims) claims[claim.name] = identity.claims.*claim.member;
  return text_of({{"name", identity.name},
                  {"isa", identity.isa},
                  {"description", identity.description},
                  {"unavailable_because", identity.unavailable_because},
                  {"claims", claims}});
}

PluginIdentity identity_of(const Engine& engine) {
  return {std::string(engine.name()), std::string(engine.isa()), std::string(engine.description()),
          engine.unavailable_because(), engine.claims()};
}

// The result of every case of a plug-in whose identity is no longer that of the start of the run: the report would
// show claims that no case checked.
Result changed_identity() {
  Result result;
  result.status = Status::fail;
  result.message = "plug-in: its table says another thing than when it was first loaded; allowed: one table";
  return result;
}

PluginIdentity decode_identity(const json& document) {
  PluginIdentity identity;
  identity.name = document.at("name").get<std::string>();
  identity.isa = document.at("isa").get<std::string>();
  identity.description = document.at("description").get<std::string>();
  identity.unavailable_because = document.at("unavailable_because").get<std::string>();
  for (const ClaimInfo& claim : kClaims) {
    identity.claims.*claim.member = document.at("claims").at(claim.name).get<bool>();
  }
  return identity;
}

class DescribedEngine final : public Engine {
 public:
  explicit DescribedEngine(PluginIdentity identity) : identity_(std::move(identity)) {}
  [[nodiscard]] std::string_view name() const override { return identity_.name; }
  [[nodiscard]] std::string_view isa() const override { return identity_.isa; }
  [[nodiscard]] std::string_view description() const override { return identity_.description; }
  [[nodiscard]] std::string unavailable_because() const override { return identity_.unavailable_because; }
  [[nodiscard]] Claims claims() const override { return identity_.claims; }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape&, const Options&) const override {
    throw Error(ErrorCode::internal, "a plug-in is opened in processes of its own only");
  }

 private:
  PluginIdentity identity_;
};

}  // namespace

PluginIdentity inspect_plugin(const std::string& path, double time_limit) {
  const ChildEnd end = run_in_child(
      [&]() -> std::string {
        try {
          return encode(PluginLibrary(path).identity());
        } catch (const Error& error) {
          return text_of({{"refused", error.what()}});
        }
      },
      time_limit);
  const std::string trouble = end.trouble(time_limit);
  if (!trouble.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: while it was loaded it {}; allowed: a headwater_plugin_v1() that returns",
                            path, trouble));
  }
  const json document = json::parse(end.result);
  if (document.contains("refused")) {
    throw Error(ErrorCode::invalid_argument, document.at("refused").get<std::string>());
  }
  return decode_identity(document);
}

Result run_isolated_case(const Case& test, const Engine& described, const Settings& settings) {
  Result result;
  result.test = &test;
  result.engine = described.name();
  result.reproduce = reproduction(test, &described, settings);
  const auto start = std::chrono::steady_clock::now();
  const ChildEnd end = run_in_child(
      [&] {
        const PluginLibrary library(settings.plugin);
        const std::unique_ptr<Engine> engine = plugin_engine(library);
        if (encode(identity_of(*engine)) != encode(identity_of(described))) {
          return encode(changed_identity());
        }
        return encode(run_case(test, engine.get(), settings));
      },
      settings.time_limit);
  result.output = end.output;
  if (end.how == ChildEnd::How::finished) {
    if (decode(end.result, result)) return result;
    result.errors.clear();
  }
  const std::string trouble = end.trouble(settings.time_limit);
  result.status = Status::fail;
  result.message = "the plug-in " + (trouble.empty() ? "left a result that cannot be read" : trouble);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::unique_ptr<Engine> described_engine(PluginIdentity identity) {
  return std::make_unique<DescribedEngine>(std::move(identity));
}

}  // namespace headwater::conformance
