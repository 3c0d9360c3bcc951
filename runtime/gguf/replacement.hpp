#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace headwater::runtime {

/// A value in place of the file's, or beside what it has.
struct Replacement {
  std::string key;
  std::variant<std::string, float, std::int64_t> value;  ///< becomes STRING, FLOAT32 or INT64
  std::string source;  ///< what said so, a flag: refusals name it for the key
};

}  // namespace headwater::runtime
