#include "conformance/ratchet.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "conformance/embedded.hpp"
#include "conformance/json_tree.hpp"
#include "conformance/text_file.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// A run may be this many times worse than its baseline: another libm, compiler or inlining moves errors as much.
constexpr double kSlack = 2.0;
// Baselines below this count as this: the result was exact or nearly so, and twice zero would allow nothing.
constexpr double kLeast = 1.0 / 64.0;
constexpr std::size_t kLargestFile = std::size_t{16} << 20;

std::string key(const StageError& error) { return error.stage + " " + error.dtype; }

}  // namespace

Ratchet Ratchet::built_in() { return parse(kRatchetJson, "the built-in ratchet.json"); }

Ratchet Ratchet::load(const std::string& path) { return parse(read_text(path, kLargestFile), path); }

Ratchet Ratchet::parse(const std::string& text, const std::string& from) {
  const auto refuse = [&](const std::string& where) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: {}: not a table of baselines; allowed: {{engine: {{case: {{stage: number}}}}}}",
                    from, where.empty() ? "the document" : where));
  };
  // Calls `each` with every key and item of an object.
  const auto for_each = [&](const JsonTree& tree, const std::string& where, const auto& each) {
    if (!tree.is(JsonTree::Kind::object)) refuse(where);
    for (std::size_t i = 0; i < tree.keys.size(); ++i) each(tree.keys[i], tree.items[i]);
  };
  Ratchet ratchet;
  for_each(parse_json(text, from), "", [&](const std::string& engine, const JsonTree& cases) {
    for_each(cases, engine, [&](const std::string& name, const JsonTree& baselines) {
      for_each(baselines, engine + " " + name, [&](const std::string& stage, const JsonTree& value) {
        if (!value.is(JsonTree::Kind::number) || !(value.number >= 0.0))
          refuse(engine + " " + name + " " + stage);
        ratchet.baselines_[engine][name][stage] = value.number;
      });
    });
  });
  return ratchet;
}

std::optional<std::string> Ratchet::judge(const std::string& engine, const std::string& name,
                                          const std::vector<StageError>& errors) const {
  for (const StageError& error : errors) {
    const auto by_engine = baselines_.find(engine);
    if (by_engine == baselines_.end()) {
      return fmt::format(
          "ratchet: no baselines for {}; record them with --update-ratchet conformance/ratchet.json", engine);
    }
    const auto by_case = by_engine->second.find(name);
    if (by_case == by_engine->second.end() || by_case->second.count(key(error)) == 0) {
      return fmt::format(
          "ratchet: no baseline for {} {}; record it with --update-ratchet conformance/ratchet.json", engine,
          key(error));
    }
    const double recorded = by_case->second.at(key(error));
    const double allowed = std::max(kSlack * recorded, kLeast);
    if (!(error.ratio <= allowed)) {
      return fmt::format("ratchet: worst err/B of {} is {:.3g}, more than {} times the recorded {:.3g}",
                         key(error), error.ratio, kSlack, recorded);
    }
  }
  return std::nullopt;
}

void Ratchet::record(const std::string& engine, const std::string& name,
                     const std::vector<StageError>& errors) {
  auto& entry = baselines_[engine][name];
  entry.clear();
  for (const StageError& error : errors) entry[key(error)] = std::stod(fmt::format("{:.3g}", error.ratio));
}

void Ratchet::save(const std::string& path) const {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream file(temporary, std::ios::binary);
    file << nlohmann::json(baselines_).dump(0) << "\n";
    file.close();
    if (!file) {
      std::remove(temporary.c_str());
      throw Error(ErrorCode::invalid_argument, temporary + ": cannot be written; allowed: a writable folder");
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw Error(ErrorCode::invalid_argument, path + ": cannot be replaced; allowed: a writable file");
  }
}

}  // namespace headwater::conformance
