#pragma once

#include <cstddef>
#include <string>

#include "headwater/engine.hpp"
#include "headwater/plugin.h"

namespace headwater::conformance {

/// Who a plug-in says it is: the texts and claims of its table, checked and copied.
struct PluginIdentity {
  std::string name;
  std::string isa;
  std::string description;
  std::string unavailable_because;
  Claims claims;
};

/// Whether the table has session_failed; the first ones ended before it.
[[nodiscard]] inline bool tells_failure(const headwater_engine_table& table) {
  return table.struct_size >= offsetof(headwater_engine_table, abort);
}

/// A shared object with an engine, loaded into this process for good: nothing of it is trusted, and unloading would run
/// more of its code. Only a process that may be lost does this (isolation.hpp).
class PluginLibrary {
 public:
  /// Errors: headwater::Error invalid_argument in one line "FILE: what; allowed: ...": no shared object, symbols that no
  /// library has, no headwater_plugin_v1, a table that is NULL, of another version, too small, without a function
  /// that it needs or claims, or whose texts and claims are not what headwater/plugin.h allows.
  explicit PluginLibrary(const std::string& path);

  [[nodiscard]] const headwater_engine_table& table() const { return *table_; }
  [[nodiscard]] const PluginIdentity& identity() const { return identity_; }

 private:
  void check_table(const std::string& path);
  void check_texts(const std::string& path);

  const headwater_engine_table* table_ = nullptr;
  PluginIdentity identity_;
};

/// The absolute path of a plug-in. Errors: headwater::Error invalid_argument where it is no readable regular file.
[[nodiscard]] std::string find_plugin(const std::string& path);

/// At most `most` characters of a text that may lack its end, other bytes than printable ASCII as '?'.
[[nodiscard]] std::string one_line(const char* text, std::size_t most);

}  // namespace headwater::conformance
