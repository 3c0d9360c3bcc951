#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headwater/options.hpp"
#include "runtime/model/panel_product.hpp"

namespace headwater::cli {

/// What every command that runs a model asks for.
struct ModelFlags {
  std::string model;              ///< a GGUF file
  std::string engine;             ///< empty: HEADWATER_ENGINE, or the library's default
  Options options;                ///< batch, chunk, memory set, threads
  DType cache_type = DType::f16;  ///< of the stored keys and values
  runtime::Precision precision =
      runtime::Precision::f32;          ///< of projections; --projections auto is the processor's
  std::optional<std::int64_t> context;  ///< -c unless it is 0; else the file's
};

/// Adds these flags to a command and reads them: add() before parse_arguments(), read() behind it. Failure naming the
/// flag, its value and what is allowed.
class ModelFlagReader {
 public:
  /// `model_required`: -m must be given; else an absent one leaves ModelFlags::model empty.
  explicit ModelFlagReader(CLI::App& app, bool model_required = true);
  ~ModelFlagReader();
  ModelFlagReader(const ModelFlagReader&) = delete;
  ModelFlagReader& operator=(const ModelFlagReader&) = delete;
  [[nodiscard]] ModelFlags read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether the arguments after a command's name name a model (-m).
[[nodiscard]] bool asks_for_model(const std::vector<std::string>& arguments);

/// Adds an option whose value is read as text, for words of our own.
CLI::Option* add_text(CLI::App& app, const char* name, std::string& text, const char* type, const char* help);

}  // namespace headwater::cli
