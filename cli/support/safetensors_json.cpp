#include "cli/support/safetensors_json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

using Json = nlohmann::json;

std::string type_names() {
  std::vector<std::string_view> names;
  for (const auto& info : tensor_types()) names.push_back(info.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Receives the events of nlohmann's parser, which keeps one bit of state for each open bracket; the nesting ends at
/// the third bracket here, so that no header makes anything grow but the header's own contents.
class HeaderReader {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  // What the parser calls. Anything out of place throws.
  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a truth value"); }
  bool number_integer(Json::number_integer_t value) { unexpected(fmt::format("the number {}", value)); }
  bool number_float(Json::number_float_t, const Json::string_t& text) {
    unexpected(fmt::format("the number {}", one_line(text, kQuotedLimit)));
  }
  bool binary(Json::binary_t&) { unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ != Place::shape && place_ != Place::offsets) unexpected(fmt::format("the number {}", value));
    if (place_ == Place::shape) {
      if (shape_->size() == kMaxDimensions) {
        throw Failure(
            fmt::format("tensor {}: shape has more than {} dimensions", in_quotes(name_), kMaxDimensions));
      }
      shape_->push_back(value);
    } else {
      if (offsets_->size() == 2) {
        throw Failure(fmt::format("tensor {}: data_offsets has more than two numbers", in_quotes(name_)));
      }
      offsets_->push_back(value);
    }
    return true;
  }

  bool string(Json::string_t& text) {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(key_, std::move(text));
    } else if (place_ == Place::tensor && key_ == "dtype") {
      type_ = find_type(text);
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool key(Json::string_t& text) {
    switch (place_) {
      case Place::top:
        if (header_.tensors.contains(text) || (text == kMetadata && seen_metadata_)) {
          throw Failure(fmt::format("tensor {} appears twice in the header", in_quotes(text)));
        }
        name_ = std::move(text);
        break;
      case Place::metadata:
        if (header_.metadata.contains(text)) {
          throw Failure(fmt::format("__metadata__: key {} appears twice", in_quotes(text)));
        }
        key_ = std::move(text);
        break;
      default: tensor_key(text);
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top && name_ == kMetadata) {
      place_ = Place::metadata;
      seen_metadata_ = true;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      type_.reset();
      shape_.reset();
      offsets_.reset();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) add_tensor();
    place_ = place_ == Place::top ? Place::start : Place::top;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      shape_.emplace();
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_.emplace();
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const Json::exception&) {
    throw Failure(
        fmt::format("the header is not valid JSON at byte {} of it, near {}; use UTF-8 JSON as the "
                    "safetensors format has it",
                    position, in_quotes(token)));
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets };
  static constexpr std::string_view kMetadata = "__metadata__";

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::start: throw Failure(fmt::format("the header is {}; it must be an object", what));
      case Place::top:
        throw Failure(fmt::format("tensor {} is {}; it must be an object {{dtype, shape, data_offsets}}",
                                  in_quotes(name_), what));
      case Place::metadata:
        throw Failure(fmt::format("__metadata__: {} is {}; it must be a text", in_quotes(key_), what));
      case Place::tensor:
        throw Failure(
            fmt::format("tensor {}: {} is {}; {}", in_quotes(name_), key_, what,
                        key_ == "dtype" ? "it must be a text" : "it must be an array of whole numbers"));
      case Place::shape:
      case Place::offsets:
        throw Failure(fmt::format("tensor {}: {} has {}; allowed are whole numbers from 0 to 2^64 - 1",
                                  in_quotes(name_), key_, what));
    }
    throw Failure("the header is not understood");
  }

  void tensor_key(std::string& text) {
    const bool known = text == "dtype" || text == "shape" || text == "data_offsets";
    if (!known) {
      throw Failure(
          fmt::format("tensor {}: key {} is not allowed; a tensor has dtype, shape and data_offsets",
                      in_quotes(name_), in_quotes(text)));
    }
    const bool twice = text == "dtype"   ? type_.has_value()
                       : text == "shape" ? shape_.has_value()
                                         : offsets_.has_value();
    if (twice && !HEADWATER_SABOTAGE("cli.safetensors.key_twice"))
      throw Failure(fmt::format("tensor {}: key {} appears twice", in_quotes(name_), in_quotes(text)));
    key_ = std::move(text);
  }

  [[nodiscard]] TensorType find_type(std::string_view text) const {
    const auto types = tensor_types();
    const auto it =
        std::find_if(types.begin(), types.end(), [&](const auto& info) { return info.name == text; });
    if (it == types.end()) {
      throw Failure(fmt::format("tensor {}: dtype {} is unknown; the format has {}", in_quotes(name_),
                                in_quotes(text), type_names()));
    }
    return it->type;
  }

  void add_tensor() {
    if (HEADWATER_SABOTAGE("cli.safetensors.type_guessed") && !type_) type_ = TensorType::f32;
    const char* missing = !type_ ? "dtype" : !shape_ ? "shape" : !offsets_ ? "data_offsets" : nullptr;
    if (missing != nullptr) throw Failure(fmt::format("tensor {} has no {}", in_quotes(name_), missing));
    if (offsets_->size() != 2) {
      throw Failure(fmt::format("tensor {}: data_offsets has {} numbers; it must have two", in_quotes(name_),
                                offsets_->size()));
    }
    header_.tensors.emplace(name_, TensorInfo{*type_, std::move(*shape_), (*offsets_)[0], (*offsets_)[1]});
  }

  SafetensorsHeader header_;
  Place place_ = Place::start;
  bool seen_metadata_ = false;
  std::string name_;  // of the tensor, or __metadata__
  std::string key_;   // inside it
  std::optional<TensorType> type_;
  std::optional<std::vector<std::uint64_t>> shape_;
  std::optional<std::vector<std::uint64_t>> offsets_;
};

}  // namespace

SafetensorsHeader parse_safetensors_json(std::string_view text) {
  // The format wants the brace first; the parser would also skip a byte order mark or spaces.
  if (text.empty() || text.front() != '{') {
    throw Failure(
        fmt::format("the header begins with {}; it must begin with '{{'", in_quotes(text.substr(0, 1))));
  }
  HeaderReader reader;
  const bool complete = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!complete) throw Failure("the header is not valid JSON");
  return reader.take();
}

}  // namespace headwater::cli
