#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/support/output_file.hpp"
#include "runtime/model/transformer.hpp"

namespace headwater::cli {

/// Writes what attention got in one layer of a prompt as an input of `headwater attend`: q as it went in (F32), k and v
/// as they are stored (the cache's type), so that `attend` with the same flags and --steps gives the same scores and
/// memory sets; beside them the session's own `scores` [Hq,n] and `last_memory` [Hq,count], the set built last, to
/// compare with.
class QkvDump {
 public:
  /// Opens the file, and listens to the transformer's layers. Failure for a layer that the model does not have.
  QkvDump(runtime::Transformer& transformer, std::int64_t layer, const std::string& path,
          const std::string& model_path);

  /// Collects the query rows of the layer; to be called for every view of a prompt.
  void take(const runtime::LayerView& view);
  /// Writes and closes the file. `steps`: as `headwater attend --steps` takes them.
  void write(const std::string& steps);

 private:
  runtime::Transformer& transformer_;
  std::int64_t layer_;
  OutputFile file_;
  DType q_type_ = DType::f32;  // as the engine got them
  std::vector<std::byte> q_;   // [tokens][heads][d_head]
};

}  // namespace headwater::cli
