#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/support/failure.hpp"

namespace headwater::cli::testing {

/// A safetensors file: length, header, data.
inline std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> file;
  file.reserve(8 + header.size() + data_bytes);
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(header.size() >> (8 * i)));
  for (const char c : header) file.push_back(static_cast<std::byte>(c));
  file.resize(file.size() + data_bytes);
  return file;
}

/// The message of the Failure that `action` ends with; empty if it does not.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace headwater::cli::testing
