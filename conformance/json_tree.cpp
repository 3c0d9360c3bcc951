#include "conformance/json_tree.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

using nlohmann::json;

// Receives the parser's events. Containers that are open lie on a stack; a finished value moves into the one below.
class Builder {
 public:
  explicit Builder(const std::string& from) : from_(from) {}

  JsonTree take() { return std::move(root_); }

  bool null() { return add({}); }
  bool boolean(bool value) {
    JsonTree tree;
    tree.kind = JsonTree::Kind::boolean;
    tree.truth = value;
    return add(std::move(tree));
  }
  bool number_integer(json::number_integer_t value) { return add_number(static_cast<double>(value)); }
  bool number_unsigned(json::number_unsigned_t value) {
    return add_number(static_cast<double>(value), true, value);
  }
  bool number_float(json::number_float_t value, const json::string_t&) { return add_number(value); }
  bool string(json::string_t& value) {
    JsonTree tree;
    tree.kind = JsonTree::Kind::text;
    tree.text = std::move(value);
    return add(std::move(tree));
  }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(JsonTree::Kind::object); }
  bool start_array(std::size_t) { return open(JsonTree::Kind::list); }
  bool key(json::string_t& value) {
    open_.back().keys.push_back(std::move(value));
    return true;
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: not JSON at byte {}; allowed: one JSON document", from_, position));
  }

 private:
  bool add_number(double value, bool is_unsigned = false, std::uint64_t integer = 0) {
    JsonTree tree;
    tree.kind = JsonTree::Kind::number;
    tree.number = value;
    tree.is_unsigned = is_unsigned;
    tree.integer = integer;
    return add(std::move(tree));
  }
  bool add(JsonTree tree) {
    if (open_.empty()) {
      root_ = std::move(tree);
    } else {
      open_.back().items.push_back(std::move(tree));
    }
    return true;
  }
  bool open(JsonTree::Kind kind) {
    if (open_.size() == kMostNesting) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: nested too deep; allowed: {} brackets", from_, kMostNesting));
    }
    open_.emplace_back();
    open_.back().kind = kind;
    return true;
  }
  bool close() {
    JsonTree finished = std::move(open_.back());
    open_.pop_back();
    return add(std::move(finished));
  }

  const std::string& from_;
  JsonTree root_;
  std::vector<JsonTree> open_;
};

}  // namespace

const JsonTree* JsonTree::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
}

JsonTree parse_json(std::string_view text, const std::string& from) {
  Builder builder(from);
  (void)json::sax_parse(text.begin(), text.end(), &builder);  // false is an error that was thrown already
  return builder.take();
}

}  // namespace headwater::conformance
